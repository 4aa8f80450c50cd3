"""StoredWeight: a weight as a checkpoint has it, of floats or quantised."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from trtspec.config.storage import (
    INPUT_SCALE_SUFFIX,
    OFFSET_SUFFIX,
    PERMUTATION_SUFFIX,
    SCALE_SUFFIX,
    VALUES_SUFFIX,
    ZERO_SUFFIX,
)
from trtspec.errors import CheckpointError


def read_tensor(tensors: Mapping[str, Tensor], name: str) -> Tensor:
    """A tensor by its internal name; CheckpointError if the checkpoint lacks it."""
    try:
        return tensors[name]
    except KeyError:
        raise CheckpointError(f"the checkpoint has no tensor {name}") from None


@dataclass(frozen=True)
class StoredWeight:
    """One weight ``[n, K]`` of a checkpoint: floats, or int8 ``values`` that stand for
    ``(values - zeros) * scales + offsets``, times ``input_scales``.

    scales: ``[n]`` or ``[n, G]`` floats; scale g belongs to the g-th run of K / G inputs. Several
    runs may be one group of the checkpoint, where its last one is shorter.
    zeros: as scales, int8; offsets: as scales, floats. input_scales: ``[K]`` floats, of the inputs.
    permutation: ``[K] i32``; the k-th input that the runs count is input permutation[k] of the
    layer. ``values`` and ``input_scales`` keep the layer's order. exact: reads the floats that a
    quantised weight stands for, as its scheme has them; None: they are made of the rest.
    """

    name: str
    values: Tensor
    scales: Tensor | None = None
    zeros: Tensor | None = None
    offsets: Tensor | None = None
    input_scales: Tensor | None = None
    permutation: Tensor | None = None
    exact: Callable[[], Tensor] | None = None

    @classmethod
    def read(cls, tensors: Mapping[str, Tensor], name: str) -> StoredWeight:
        """The weight of that internal name, with what belongs to it.

        Raises:
            CheckpointError: a tensor is missing, or what must be finite is not.
        """
        if name + VALUES_SUFFIX not in tensors:
            return cls(name, read_tensor(tensors, name))
        read_tensor(tensors, name + SCALE_SUFFIX)
        scales, zeros, offsets, factors, order = (tensors.get(name + each) for each in _PARTS)
        values = tensors[name + VALUES_SUFFIX]
        exact = partial(read_tensor, tensors, name) if name in tensors else None
        weight = cls(name, values, scales, zeros, offsets, factors, order, exact)
        weight.require_finite("dequantised")
        return weight

    def grouped(self, of: Tensor, group_size: int) -> Tensor:
        """Scales, zeros or offsets for groups of that size, ``[n, ceil(K / group_size)]``.

        Raises:
            CheckpointError: a group would span several of the checkpoint's that differ.
        """
        depth = self.values.shape[1]
        of = of[:, None] if of.dim() == 1 else of
        runs, size = of.shape[1], group_size or depth
        run = depth // runs
        found = of[:, torch.arange(0, depth, size, device=of.device) // run]
        exact = depth % runs == 0
        if exact and runs > 1 and run % size:
            # Where a checkpoint's last group is shorter, runs are parts of its groups.
            lies_in = torch.arange(0, depth, run, device=of.device) // size
            exact = torch.equal(found[:, lies_in], of)
        if not exact:
            raise CheckpointError(
                f"the checkpoint's tensor {self.name} has {runs} scales for {depth} inputs, "
                f"which groups of {size} do not divide evenly"
            )
        return found

    def floats(self) -> Tensor:
        """The weight ``[n, K]`` in floats."""
        if self.scales is None:
            return self.values
        if self.exact is not None:
            return self.exact()
        depth = self.values.shape[1]
        weight = self.values.float()
        place: Tensor | slice = slice(None)
        if self.permutation is not None:
            place = torch.empty(depth, dtype=torch.int64)
            place[self.permutation.long()] = torch.arange(depth)
        if self.zeros is not None:
            weight -= self.grouped(self.zeros, 1)[:, place].float()
        weight *= self.grouped(self.scales, 1)[:, place].float()
        if self.offsets is not None:
            weight += self.grouped(self.offsets, 1)[:, place].float()
        return weight if self.input_scales is None else weight * self.input_scales.float()

    def picked(self, rows: Tensor) -> StoredWeight:
        """Its outputs ``rows [n] i64``."""

        def of(part: Tensor | None) -> Tensor | None:
            return None if part is None else part[rows]

        exact = self.exact
        return replace(
            self,
            values=self.values[rows],
            scales=of(self.scales),
            zeros=of(self.zeros),
            offsets=of(self.offsets),
            exact=None if exact is None else lambda: exact()[rows],
        )

    def require_finite(self, purpose: str) -> None:
        """CheckpointError, ending with ``purpose``, for floats, scales, offsets or factors that are
        not finite."""
        parts = (self.scales, self.zeros, self.offsets, self.input_scales)
        checked = {self.name: self.values} if self.scales is None else {}
        for suffix, part in zip(_PARTS, parts, strict=False):
            if part is not None:
                checked[self.name + suffix] = part
        for name, tensor in checked.items():
            if not torch.isfinite(tensor).all():
                count = int((~torch.isfinite(tensor)).sum())
                raise CheckpointError(
                    f"the checkpoint's tensor {name} has {count} values that are NaN or infinite; "
                    f"such weights cannot be {purpose}"
                )


_PARTS = (SCALE_SUFFIX, ZERO_SUFFIX, OFFSET_SUFFIX, INPUT_SCALE_SUFFIX, PERMUTATION_SUFFIX)
"""Suffixes, in the order of a `StoredWeight`'s fields."""
