"""Mamba-2: a convolution and a recurrent state, between two products."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from trtspec.config.mixers.mamba2 import Mamba2Spec
from trtspec.formats.network_formats import NetworkFormats
from trtspec.formats.registry import IN_PANELS
from trtspec.models.block import Block, Kernels
from trtspec.models.causal_conv import CausalConv
from trtspec.models.linear import Linear
from trtspec.models.norm import Norm, RMSNorm
from trtspec.models.ranks import Ranks
from trtspec.models.rope import Rotation
from trtspec.models.rows import Cache
from trtspec.models.state_rows import StateRows
from trtspec.ops.linear import rms_norm
from trtspec.ops.mamba2 import mamba2
from trtspec.ops.state_walk import StateWalk, certain_rows


class Mamba2(nn.Module):
    """Its own buffers: ``a_log``, ``dt_bias``, ``skip``, each ``[num_heads] f32``; see
    `trtspec.ops.mamba2`."""

    a_log: Tensor
    dt_bias: Tensor
    skip: Tensor

    def __init__(
        self,
        spec: Mamba2Spec,
        hidden: int,
        dtype: torch.dtype,
        *,
        formats: NetworkFormats = IN_PANELS,
    ) -> None:
        super().__init__()
        self.sizes = [spec.inner, spec.channels, spec.num_heads]
        self.groups = spec.num_groups
        self.norm_over_ranks = spec.norm_over_ranks
        self.limits = spec.least_step, math.inf if spec.most_step is None else spec.most_step

        def linear(part: str, inputs: int, outputs: int) -> Linear:
            format = formats.of({part: outputs})
            return Linear(inputs, outputs, dtype, spec.bias, format=format)

        self.in_proj = linear("in_proj", hidden, sum(self.sizes))
        self.out_proj = linear("out_proj", spec.inner, hidden)
        self.conv = CausalConv(spec.channels, spec.conv_width, spec.conv_bias, dtype)
        for name in ("a_log", "dt_bias", "skip"):
            self.register_buffer(name, torch.empty(spec.num_heads, dtype=torch.float32))
        self.norm = RMSNorm(spec.inner, spec.norm.eps, dtype)

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
        """See `Attention.forward`; states are updated by the certain rows."""
        gate, xbc, dt = self.in_proj(x, norm=norm).split(self.sizes, dim=1)
        y = self._walk(gate, xbc, dt, cache, rows.walk())
        if kept is not None:
            y, residual = y[kept], None if residual is None else residual[kept]
        in_product: Norm | None = None
        if self.norm_over_ranks:
            assert ranks is not None, "it is a rank's"
            y = self.norm.scaled(y, ranks.mean_square(y))
        elif self.groups > 1:
            y = self._norm_groups(y)
        else:
            in_product = self.norm
        out: Tensor = self.out_proj(y, norm=in_product, residual=residual)
        return out

    def replay(self, state_slots: Tensor, rows: Tensor, row_start: Tensor, cache: Cache) -> None:
        """See `trtspec.models.replay.Replay`."""
        _, inputs, _, steps = cache
        xbc, dt = inputs[rows].squeeze(1), steps[rows].squeeze(1)
        gate = xbc.new_zeros(xbc.shape[0], self.sizes[0])
        self._walk(gate, xbc, dt, cache, certain_rows(state_slots, row_start, rows))

    def _norm_groups(self, y: Tensor) -> Tensor:
        weights = self.norm.weight.view(self.groups, -1)
        return rms_norm(torch.unflatten(y, 1, (self.groups, -1)), weights, self.norm.eps).flatten(1)

    def _walk(self, gate: Tensor, xbc: Tensor, dt: Tensor, cache: Cache, walk: StateWalk) -> Tensor:
        tail, inputs, state, steps = cache
        xbc = self.conv(xbc, tail, inputs, walk)
        of_heads = self.a_log, self.dt_bias, self.skip
        return mamba2(xbc, dt, gate, *of_heads, state, steps, walk, self.groups, self.limits)


def _missing(spec: Mamba2Spec) -> Iterator[str]:
    if spec.norm.kind != "rms" or spec.norm.one_plus:
        yield "Mamba-2 with another norm than RMS"


def _lacks(spec: Mamba2Spec, kernels: Kernels) -> Iterator[str]:
    if kernels is Kernels.PLUGINS:
        yield spec.words


MAMBA2 = Block(Mamba2Spec, Mamba2, _missing, _lacks)
