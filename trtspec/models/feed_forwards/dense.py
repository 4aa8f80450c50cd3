"""The dense feed-forward part of a decoder layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trtspec.config.feed_forwards.dense import DenseSpec
from trtspec.formats.network_formats import NetworkFormats
from trtspec.formats.registry import IN_PANELS
from trtspec.models.activations import activate, activate_gated
from trtspec.models.block import Block
from trtspec.models.linear import Linear
from trtspec.models.norm import Norm
from trtspec.ops.few_row_linear import TILE


class DenseFeedForward(nn.Module):
    """``down(act(gate(y)) * up(y))`` of ``y = norm(x)``, with gate and up fused; without a gate
    ``down(act(up(y)))``."""

    def __init__(
        self,
        spec: DenseSpec,
        hidden: int,
        dtype: torch.dtype,
        *,
        formats: NetworkFormats = IN_PANELS,
    ) -> None:
        super().__init__()
        inner, bias = spec.intermediate_size, spec.bias
        self.activation = spec.activation
        self.gate_up: Linear | None = None
        self.gates = False  # whether its product is gated already
        self.up: Linear | None = None
        if spec.gated:
            joined = formats.of({"gate": inner, "up": inner})
            is_silu = spec.activation == "silu" and inner % TILE == 0
            gating = joined.with_swiglu() if is_silu else None
            self.gates = gating is not None
            self.gate_up = Linear(hidden, 2 * inner, dtype, bias, format=gating or joined)
        else:
            self.up = Linear(hidden, inner, dtype, bias, format=formats.of({"up": inner}))
        self.down = Linear(inner, hidden, dtype, bias, format=formats.of({"down": hidden}))

    def forward(
        self,
        x: Tensor,
        *,
        norm: Norm | None,
        residual: Tensor | None,
        adapters: Tensor | None = None,
    ) -> Tensor:
        """``x [T, hidden]`` -> ``[T, hidden]``, with the sum of ``residual`` if one is given.
        ``adapters``: see `Linear.forward`."""
        after = {"residual": residual, "adapters": adapters}
        if self.gate_up is None:
            assert self.up is not None
            inner = activate(self.activation, self.up(x, norm=norm, adapters=adapters))
        else:
            inner = self.gate_up(x, norm=norm, adapters=adapters)
            if self.activation == "silu":  # a product takes it along
                silu: Tensor = self.down(inner, gated=not self.gates, **after)
                return silu
            inner = activate_gated(self.activation, inner)
        out: Tensor = self.down(inner, **after)
        return out


DENSE = Block(DenseSpec, DenseFeedForward, takes_adapters=True)
