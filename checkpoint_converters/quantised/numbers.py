"""Quantised weights as every scheme yields them: whole numbers, scales, and what else they need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from checkpoint_converters.containers.safetensors_files import TensorHeader
from checkpoint_converters.quantised.groups import even_runs
from trtspec.config.storage import (
    INPUT_SCALE_SUFFIX,
    OFFSET_SUFFIX,
    PERMUTATION_SUFFIX,
    SCALE_SUFFIX,
    VALUES_SUFFIX,
    ZERO_SUFFIX,
    WeightStorage,
)


@dataclass(frozen=True, eq=False)
class Numbers:
    """A weight ``[N, K]``: ``W[n, k] = ((values[n, k] - zeros[n, g]) scales[n, g] + offsets[n, g])
    input_scales[k]``, where g is the group of input k: groups have K / G inputs each, one behind
    the other as ``permutation`` lists them. Of a file whose last group is shorter than the others
    they are parts of its groups (`Groups.even`), so that all have one length.

    values ``[N, K] i8``, signed: of b bits from ``-2^(b-1)`` on. scales and offsets ``[N, G] f32``,
    zeros ``[N, G] i8``; input_scales ``[K] f32``; permutation ``[K] i32``.
    """

    values: Tensor
    scales: Tensor
    zeros: Tensor | None = None
    offsets: Tensor | None = None
    input_scales: Tensor | None = None
    permutation: Tensor | None = None

    def floats(self) -> Tensor:
        """The weight ``[N, K] f32``."""
        groups = self.scales.shape[1]
        weight = self.values.float()
        size = weight.shape[1] // groups
        group = torch.arange(weight.shape[1]) // size
        if self.permutation is not None:
            group = torch.empty_like(group).index_copy_(0, self.permutation.long(), group)
        if self.zeros is not None:
            weight -= self.zeros.float()[:, group]
        weight *= self.scales[:, group]
        if self.offsets is not None:
            weight += self.offsets[:, group]
        return weight if self.input_scales is None else weight * self.input_scales

    def parts(self) -> dict[str, Tensor]:
        """Those that it has, by what stands behind its name."""
        named = {
            VALUES_SUFFIX: self.values,
            SCALE_SUFFIX: self.scales,
            ZERO_SUFFIX: self.zeros,
            OFFSET_SUFFIX: self.offsets,
            INPUT_SCALE_SUFFIX: self.input_scales,
            PERMUTATION_SUFFIX: self.permutation,
        }
        return {name: part for name, part in named.items() if part is not None}


@dataclass(frozen=True, eq=False)
class QuantisedTensor(TensorHeader):
    """A quantised weight ``[N, K]``, which reads as floats. Its ``beside`` are the numbers that the
    floats are made of. ``unpack`` reads these from the file."""

    storage: WeightStorage
    unpack: Callable[[], Numbers]

    def read(self) -> Tensor:
        return self.unpack().floats()

    @property
    def scheme(self) -> WeightStorage | None:
        return self.storage if len(self.shape) == 2 else None

    def beside(self) -> Mapping[str, TensorHeader]:
        if self.scheme is None:
            return {}
        return {
            suffix: PartOfQuantised(self.name + suffix, self.file, dtype, shape, self, suffix)
            for suffix, (dtype, shape) in _parts_of(self).items()
        }


@dataclass(frozen=True, eq=False)
class PartOfQuantised(TensorHeader):
    """One part of a quantised weight, read when asked for."""

    whole: QuantisedTensor
    suffix: str

    def read(self) -> Tensor:
        return _latest(self.whole).parts()[self.suffix]


_LATEST: WeakKeyDictionary[QuantisedTensor, Numbers] = WeakKeyDictionary()
"""The parts of one weight are asked for one after another."""


def _latest(whole: QuantisedTensor) -> Numbers:
    found = _LATEST.get(whole)
    if found is None:
        _LATEST.clear()
        found = _LATEST[whole] = whole.unpack()
    return found


def _parts_of(weight: QuantisedTensor) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The parts of a weight: dtypes, as safetensors spells these, and shapes."""
    storage, (n, k) = weight.storage, weight.shape
    groups = (n, even_runs(k, storage.group_size))
    found: dict[str, tuple[str, tuple[int, ...]]] = {
        VALUES_SUFFIX: ("I8", (n, k)),
        SCALE_SUFFIX: ("F32", groups),
    }
    if storage.zeros:
        found[ZERO_SUFFIX] = "I8", groups
    if storage.offsets:
        found[OFFSET_SUFFIX] = "F32", groups
    if storage.input_scales:
        found[INPUT_SCALE_SUFFIX] = "F32", (k,)
    if storage.permuted:
        found[PERMUTATION_SUFFIX] = "I32", (k,)
    return found
