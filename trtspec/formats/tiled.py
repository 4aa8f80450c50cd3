"""Weights of 4 or 8 bits in tiles, for the few-row products of CUDA."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trtspec.formats.base import Mixture, Norm, Place, WeightFormat, prologue
from trtspec.formats.quantised import QuantisedFormat
from trtspec.ops.few_row_linear import (
    TILE,
    Values,
    few_row_linear,
    in_blocks,
    pack_tiles,
    packed_shape,
    unwoven,
    woven,
)
from trtspec.ops.linear_quantised import arranged, dequantise

_VALUES = {
    ("int", 8): Values.int8,
    ("int", 4): Values.int4,
    ("float", 8): Values.e4m3,
    ("float", 4): Values.e2m1,
}
"""By the kinds of storage and their bits."""


@dataclass(frozen=True)
class TiledFormat(QuantisedFormat):
    """The buffers of `QuantisedFormat` with ``packed`` in tiles. Inputs are never rounded.
    may_gate, gates: as in `FewRowFormat`."""

    input_bits: int = 0
    may_gate: bool = False
    gates: bool = False

    network_dtype = None  # type: ignore[assignment]

    def with_swiglu(self) -> WeightFormat | None:
        return replace(self, gates=True) if self.may_gate else None

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
        weights = self._weights(buffers)
        return few_row_linear(
            arranged(prologue(x, norm, gated), weights),
            weights.packed,
            woven(bias) if self.gates and bias is not None else bias,
            n,
            out_dtype,
            values=self._kept,
            group_size=self.scheme.group_size,
            scales=weights.scales,
            zeros=weights.zeros,
            offsets=weights.offsets,
            swiglu=self.gates,
            residual=residual,
        )

    def mixture(
        self,
        experts: Mixture,
        x: Tensor,
        chosen: Tensor,
        weights: Tensor,
        residual: Tensor | None,
    ) -> Tensor:
        return WeightFormat.mixture(self, experts, x, chosen, weights, residual)

    def reads_chosen_experts(self, device: str) -> bool:
        return False

    def rows(
        self, buffers: Mapping[str, Tensor], ids: Tensor, k: int, dtype: torch.dtype
    ) -> Tensor:
        """Of each row its whole tile is dequantised."""
        tiles, groups = ids // TILE, ("packed", "scales", "zeros", "offsets")
        own = {name: b[tiles] if name in groups else b for name, b in buffers.items()}
        found = self.dequantised(own, len(ids) * TILE, k).view(len(ids), TILE, k)
        return found[torch.arange(len(ids), device=ids.device), ids % TILE].to(dtype)

    def dequantised(self, buffers: Mapping[str, Tensor], n: int, k: int) -> Tensor:
        weights = in_blocks(self._weights(buffers), self._kept, n, k)
        exact = dequantise(weights, self._kept.bits, self.scheme.group_size, n, k)
        return unwoven(exact) if self.gates else exact

    def unsupported(self, place: Place) -> str | None:
        if not place.few_rows:
            return super().unsupported(place)
        if (self.scheme.kind, self.scheme.bits) not in _VALUES:
            return f"on device {place.device!r}, kernels for values of {self.name} are for CPUs"
        return None

    @property
    def _kept(self) -> Values:
        return _VALUES[self.scheme.kind, self.scheme.bits]

    def _packed_shape(self, n: int, k: int) -> tuple[int, ...]:
        return packed_shape(n, k, self._kept.bits)

    def _pack(self, values: Tensor) -> Tensor:
        bits = self._kept.bits
        # Bytes are kept as they are.
        patterns = values if bits == 8 else self._patterns(values) + 8
        patterns = patterns.view(torch.uint8)
        return pack_tiles(woven(patterns) if self.gates else patterns, bits)

    def _pack_groups(self, values: Tensor) -> Tensor:
        return super()._pack_groups(woven(values) if self.gates else values)
