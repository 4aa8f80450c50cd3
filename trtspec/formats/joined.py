"""Layers whose outputs are those of several parts, each in a format of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from trtspec.formats.base import BufferSpec, Norm, Place, Rounding, WeightFormat
from trtspec.formats.stored import StoredWeight


@dataclass(frozen=True)
class JoinedFormat(WeightFormat):
    """Buffers ``part{i}_B`` for each buffer B of part i. Products are those of the parts, which are
    concatenated; each part takes the norm or gate of the input itself.

    parts: the number of outputs and the format of each.
    """

    parts: tuple[tuple[int, WeightFormat], ...]

    @property
    def name(self) -> str:  # type: ignore[override]
        return " and ".join(dict.fromkeys(kind.name for _, kind in self.parts))

    @property
    def is_rounded(self) -> bool:  # type: ignore[override]
        return any(kind.is_rounded for _, kind in self.parts)

    def storage(self, n: int, k: int, dtype: torch.dtype) -> Mapping[str, BufferSpec]:
        return {
            f"{_start(i)}{name}": spec
            for i, (count, kind) in enumerate(self.parts)
            for name, spec in kind.storage(count, k, dtype).items()
        }

    def load(self, parts: Sequence[StoredWeight], buffers: Mapping[str, Tensor]) -> Rounding:
        rounding, rest = Rounding(), list(parts)
        for i, (count, kind) in enumerate(self.parts):
            own: list[StoredWeight] = []
            while sum(each.shape[0] for each in own) < count:
                own.append(rest.pop(0))
            rounding += kind.load(own, _own(buffers, i))
        return rounding

    def product(
        self,
        buffers: Mapping[str, Tensor],
        x: Tensor,
        bias: Tensor | None,
        n: int,
        out_dtype: torch.dtype | None,
        *,
        norm: Norm | None,
        gated: bool,
        residual: Tensor | None,
    ) -> Tensor:
        counts = [count for count, _ in self.parts]
        biases = [None] * len(counts) if bias is None else torch.split(bias, counts)
        found = [
            kind.product(
                _own(buffers, i), x, own, count, out_dtype, norm=norm, gated=gated, residual=None
            )
            for i, ((count, kind), own) in enumerate(zip(self.parts, biases, strict=True))
        ]
        y = torch.cat(found, dim=-1)
        return y if residual is None else residual + y

    def dequantised(self, buffers: Mapping[str, Tensor], n: int, k: int) -> Tensor:
        parts = enumerate(self.parts)
        return torch.cat([f.dequantised(_own(buffers, i), count, k) for i, (count, f) in parts])

    def bytes(self, n: int, k: int, dtype: torch.dtype) -> int:
        return sum(kind.bytes(count, k, dtype) for count, kind in self.parts)

    def unsupported(self, place: Place) -> str | None:
        return next(filter(None, (kind.unsupported(place) for _, kind in self.parts)), None)

    def describe(self, dtype: str) -> str:
        return " beside ".join(dict.fromkeys(kind.describe(dtype) for _, kind in self.parts))


def joined(parts: Iterable[tuple[int, WeightFormat]]) -> WeightFormat:
    """One format for parts, given by their numbers of outputs and their formats. Parts of equal
    formats are one, unless they arrange their inputs: each may do so in its own way, which only its
    values show."""
    apart = [
        (count, kind, i if kind.arranges_inputs else -1) for i, (count, kind) in enumerate(parts)
    ]
    runs = groupby(apart, lambda part: part[1:])
    merged = tuple((sum(count for count, *_ in run), kind) for (kind, _), run in runs)
    return merged[0][1] if len(merged) == 1 else JoinedFormat(merged)


def _start(part: int) -> str:
    return f"part{part}_"


def _own(buffers: Mapping[str, Tensor], part: int) -> dict[str, Tensor]:
    start = _start(part)
    return {name.removeprefix(start): b for name, b in buffers.items() if name.startswith(start)}
