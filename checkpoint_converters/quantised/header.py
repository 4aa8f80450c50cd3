"""QuantisedHeader: a quantised weight in a file, as one tensor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from checkpoint_converters.containers.safetensors_files import TensorHeader
from trtspec.config.quantised import QuantisedTensor, Weight
from trtspec.config.storage import WeightStorage


@dataclass(frozen=True, eq=False)
class QuantisedHeader(TensorHeader):
    """A quantised weight ``[N, K]``; with more dimensions, all but the last are rows. ``unpack``
    reads it from the file, in the form given by ``stored``."""

    stored: WeightStorage
    unpack: Callable[[], QuantisedTensor]

    def read(self) -> Tensor:
        """Its floats."""
        return self.unpack().floats().view(self.shape)

    def weight(self) -> Weight:
        return self.read() if self.storage is None else self.unpack()

    @property
    def storage(self) -> WeightStorage | None:
        return self.stored if len(self.shape) == 2 else None
