"""The token embedding."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from trtspec.config.quantised import Weights
from trtspec.formats.base import Rounding, WeightFormat
from trtspec.formats.registry import IN_ROWS
from trtspec.formats.stored import StoredWeight


class Embedding(nn.Module):
    """Token embedding ``[V, H]`` with rows in a `WeightFormat`: its buffers are the format's, for
    floats ``weight [V, H]``. ``rounding`` is the format's error, once the rows are loaded."""

    def __init__(
        self,
        vocab_size: int,
        hidden: int,
        dtype: torch.dtype,
        *,
        format: WeightFormat | None = None,
    ) -> None:
        """``format``: None for floats."""
        super().__init__()
        format = format or IN_ROWS.layers
        self.hidden, self.dtype, self.format = hidden, dtype, format
        self.rounding = Rounding()
        storage = format.storage(vocab_size, hidden, dtype)
        self._names = tuple(storage)
        for name, spec in storage.items():
            self.register_buffer(name, torch.empty(spec.shape, dtype=spec.dtype))

    def forward(self, ids: Tensor) -> Tensor:
        """``ids [T] i64`` -> ``[T, H]``."""
        return self.format.rows(self._buffers_of_rows, ids, self.hidden, self.dtype)

    def load(self, tensors: Weights, name: str) -> None:
        """Load the checkpoint's weight of that internal name.

        Raises:
            CheckpointError: it is missing, or has values that the format cannot hold.
        """
        self.rounding = self.format.load([StoredWeight.read(tensors, name)], self._buffers_of_rows)

    @property
    def _buffers_of_rows(self) -> Mapping[str, Tensor]:
        return {name: getattr(self, name) for name in self._names}


def rounded_scale(scale: float, dtype: torch.dtype) -> float:
    """A factor on embedding rows, rounded like them: Gemma was trained with such a factor."""
    return float(torch.tensor(scale, dtype=dtype, device="cpu"))
