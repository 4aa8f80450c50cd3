"""The MLP that every decoder shares."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trtspec.config.ffn_spec import DenseSpec
from trtspec.formats.network_formats import NetworkFormats
from trtspec.formats.registry import IN_PANELS
from trtspec.models.linear import Linear
from trtspec.models.norm import RMSNorm


class SwiGLU(nn.Module):
    """``x + down(silu(gate(y)) * up(y))`` of ``y = norm(x)``, with gate and up fused."""

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
        self.gate_up = Linear(hidden, 2 * inner, dtype, bias, format=formats.layers)
        self.down = Linear(inner, hidden, dtype, bias, format=formats.layers)

    def forward(self, x: Tensor, norm: RMSNorm) -> Tensor:
        """``x [T, hidden]`` -> ``[T, hidden]``."""
        out: Tensor = self.down(self.gate_up(x, norm=norm), gated=True, residual=x)
        return out
