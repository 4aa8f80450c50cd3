"""The gated delta rule."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from trtspec.config.mixers.gated_delta import GatedDeltaSpec
from trtspec.formats.network_formats import NetworkFormats
from trtspec.formats.registry import IN_PANELS, floats_beside
from trtspec.models.block import Block, Kernels
from trtspec.models.causal_conv import CausalConv
from trtspec.models.linear import Linear
from trtspec.models.norm import Norm, make_norm
from trtspec.models.ranks import Ranks
from trtspec.models.rope import Rotation
from trtspec.models.rows import Cache
from trtspec.models.state_rows import StateRows
from trtspec.ops.gated_delta import gated_delta
from trtspec.ops.state_walk import StateWalk, certain_rows


class GatedDelta(nn.Module):
    """q, k, v and z from one product, then a short convolution over q, k and v and the delta rule;
    its output is normed per head and multiplied by ``silu(z)``.

    The gates, which control how much a state forgets and absorbs, are never quantised (``ba``);
    ``a_log [value heads]`` and ``dt_bias`` are float32.
    """

    a_log: Tensor
    dt_bias: Tensor

    def __init__(
        self,
        spec: GatedDeltaSpec,
        hidden: int,
        dtype: torch.dtype,
        *,
        formats: NetworkFormats = IN_PANELS,
    ) -> None:
        super().__init__()
        self.spec = spec
        heads, both = spec.num_value_heads, {"qkv": spec.channels, "z": spec.values}
        joined, out = formats.of(both), formats.of({"out": hidden})
        self.qkvz = Linear(hidden, sum(both.values()), dtype, format=joined)
        self.ba = Linear(hidden, 2 * heads, dtype, format=floats_beside(joined))
        self.conv = CausalConv(spec.channels, spec.conv_width, False, dtype)
        self.register_buffer("a_log", torch.empty(heads, dtype=torch.float32))
        self.register_buffer("dt_bias", torch.empty(heads, dtype=torch.float32))
        self.norm = make_norm(spec.norm, spec.value_dim, dtype)
        self.out = Linear(spec.values, hidden, dtype, format=out)

    def forward(
        self,
        x: Tensor,
        rows: StateRows,
        rotation: Rotation | None,
        cache: Cache,
        *,
        norm: Norm | None,
        residual: Tensor | None,
        kept: Tensor | None = None,
        ranks: Ranks | None = None,
    ) -> Tensor:
        """See `Attention.forward`; the states in the cache are updated by all certain rows."""
        x = x if norm is None else norm(x)
        qkv, z = self.qkvz(x).split([self.spec.channels, self.spec.values], dim=1)
        read = self._delta(qkv, self.ba(x), rows.walk(), cache)
        if kept is not None:
            read, z = read[kept], z[kept]
            residual = None if residual is None else residual[kept]
        normed = self.norm(torch.unflatten(read, 1, (-1, self.spec.value_dim))).flatten(1)
        out: Tensor = self.out(torch.cat([z, normed], dim=1), gated=True, residual=residual)
        return out

    def replay(self, state_slots: Tensor, rows: Tensor, row_start: Tensor, cache: Cache) -> None:
        """See `trtspec.models.replay`: the stored inputs of the rows are applied again."""
        _, inputs, _, gates = cache
        walk = certain_rows(state_slots, row_start, rows)
        self._delta(inputs[rows].squeeze(1), gates[rows].squeeze(1), walk, cache)

    def _delta(self, qkv: Tensor, gates: Tensor, walk: StateWalk, cache: Cache) -> Tensor:
        tail, inputs, state, kept = cache
        mixed = self.conv(qkv, tail, inputs, walk)
        constants, spec = (self.a_log, self.dt_bias), self.spec
        return gated_delta(mixed, gates, *constants, state, kept, walk, spec.key_dim, spec.tiled)


def _lacks(spec: GatedDeltaSpec, kernels: Kernels) -> Iterator[str]:
    if kernels is Kernels.PLUGINS:
        yield spec.words


GATED_DELTA = Block(GatedDeltaSpec, GatedDelta, lacks=_lacks)
