"""StoredWeight: a weight as a checkpoint stores it, as floats or quantised, with its name."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trtspec.config.quantised import QuantisedTensor, Weight, Weights
from trtspec.errors import CheckpointError


def read_tensor(tensors: Weights, name: str) -> Tensor:
    """A tensor by its internal name, in floats; CheckpointError if the checkpoint lacks it."""
    found = _read(tensors, name)
    return found.floats() if isinstance(found, QuantisedTensor) else found


@dataclass(frozen=True)
class StoredWeight:
    """One weight ``[n, K]`` of a checkpoint. name: for messages."""

    name: str
    weight: Weight

    @classmethod
    def read(cls, tensors: Weights, name: str) -> StoredWeight:
        """The weight of that internal name.

        Raises:
            CheckpointError: it is missing, or is quantised with scales that are not finite.
        """
        weight = cls(name, _read(tensors, name))
        if weight.quantised is not None:
            weight.require_finite("dequantised")
        return weight

    @property
    def quantised(self) -> QuantisedTensor | None:
        """The quantised weight; None: it is stored as floats."""
        return self.weight if isinstance(self.weight, QuantisedTensor) else None

    @property
    def shape(self) -> torch.Size:
        return self.weight.shape

    def floats(self) -> Tensor:
        """The weight ``[n, K]`` in floats."""
        return self.weight.floats() if isinstance(self.weight, QuantisedTensor) else self.weight

    def picked(self, rows: Tensor) -> StoredWeight:
        """The weight of the outputs ``rows [n] i64`` only."""
        if isinstance(self.weight, QuantisedTensor):
            picked = self.weight.with_rows(lambda part: part.index_select(0, rows))
            return StoredWeight(self.name, picked)
        return StoredWeight(self.name, self.weight[rows])

    def grouped(self, of: Tensor, group_size: int) -> Tensor:
        """Turn its scales, zero points or minima ``of [n, G]`` into those of groups of this size,
        ``[n, ceil(K / group_size)]``.

        Raises:
            CheckpointError: a group would span several of the checkpoint's that differ.
        """
        depth, groups = self.shape[1], of.shape[1]
        own, size = depth // groups, group_size or depth
        found = of[:, torch.arange(0, depth, size, device=of.device) // own]
        if groups > 1 and own % size:
            # Where a checkpoint's last group is shorter, these are parts of its groups.
            lies_in = torch.arange(0, depth, own, device=of.device) // size
            if not torch.equal(found[:, lies_in], of):
                raise CheckpointError(
                    f"the checkpoint's tensor {self.name} has {groups} scales for {depth} inputs, "
                    f"which groups of {size} do not divide evenly"
                )
        return found

    def require_finite(self, purpose: str) -> None:
        """CheckpointError if floats, scales, minima or input scales are not finite; its message
        ends with ``purpose``."""
        found = self.weight
        parts: dict[str, Tensor | None] = {}
        if isinstance(found, QuantisedTensor):
            parts = {" (scales)": found.scales, " (minima)": found.minima}
            parts[" (input scales)"] = found.input_scales
        else:
            parts[""] = found
        for of, part in parts.items():
            if part is not None and not torch.isfinite(part).all():
                count = int((~torch.isfinite(part)).sum())
                raise CheckpointError(
                    f"the checkpoint's tensor {self.name}{of} has {count} values that are NaN or "
                    f"infinite; such weights cannot be {purpose}"
                )


def _read(tensors: Weights, name: str) -> Weight:
    try:
        return tensors[name]
    except KeyError:
        raise CheckpointError(f"the checkpoint has no tensor {name}") from None
