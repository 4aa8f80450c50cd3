"""StoredWeight: a weight as a checkpoint has it, of floats or quantised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from trtspec.config.storage import SCALE_SUFFIX
from trtspec.errors import CheckpointError


def read_tensor(tensors: Mapping[str, Tensor], name: str) -> Tensor:
    """A tensor by its internal name; CheckpointError if the checkpoint lacks it."""
    try:
        return tensors[name]
    except KeyError:
        raise CheckpointError(f"the checkpoint has no tensor {name}") from None


@dataclass(frozen=True)
class StoredWeight:
    """One weight ``[n, K]`` of a checkpoint: floats, or int8 ``values`` with a scale for each
    output, ``scales [n]``."""

    name: str
    values: Tensor
    scales: Tensor | None = None

    @classmethod
    def read(cls, tensors: Mapping[str, Tensor], name: str) -> StoredWeight:
        """The weight of that internal name, with its scales if it has any.

        Raises:
            CheckpointError: a tensor is missing, or a scale is not finite.
        """
        values = read_tensor(tensors, name)
        if values.dtype != torch.int8:
            return cls(name, values)
        weight = cls(name, values, read_tensor(tensors, name + SCALE_SUFFIX))
        weight.require_finite("dequantised")
        return weight

    def floats(self) -> Tensor:
        """The weight ``[n, K]`` in floats."""
        if self.scales is None:
            return self.values
        return self.values.float() * self.scales.float()[:, None]

    def require_finite(self, purpose: str) -> None:
        """CheckpointError, ending with ``purpose``, for floats or scales that are not finite."""
        tensor, name = self.values, self.name
        if self.scales is not None:
            tensor, name = self.scales, self.name + SCALE_SUFFIX
        if not torch.isfinite(tensor).all():
            count = int((~torch.isfinite(tensor)).sum())
            raise CheckpointError(
                f"the checkpoint's tensor {name} has {count} values that are NaN or infinite; such "
                f"weights cannot be {purpose}"
            )
