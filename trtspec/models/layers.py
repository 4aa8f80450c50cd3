"""The layers that every decoder shares. On CPUs all are row-invariant: a row's bits ignore its
neighbours.

Weights are buffers, not parameters: engines only infer, and a builder carries them as constants.
Fresh layers hold uninitialised memory until weights are loaded.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trtspec.models import onnx_ops
from trtspec.models.linear import PACKED, Linear, WeightLayout


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension; buffer ``weight [size]``.

    The norm is taken in float32 and rounded to x's dtype before the weight multiplies, which is
    Llama's order of rounding.
    """

    weight: Tensor

    def __init__(self, size: int, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.eps = eps
        self.register_buffer("weight", torch.empty(size, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """``x [..., size]`` -> the same shape and dtype."""
        if torch.onnx.is_in_onnx_export():
            return onnx_ops.rms_norm(x, self.weight, self.eps)
        wide = x.float()
        mean_square = wide.pow(2).mean(-1, keepdim=True)
        return self.weight * (wide * torch.rsqrt(mean_square + self.eps)).to(x.dtype)


class SwiGLU(nn.Module):
    """``down(silu(gate(x)) * up(x))`` with gate and up fused; the product is taken in float32."""

    def __init__(
        self,
        hidden: int,
        intermediate: int,
        dtype: torch.dtype,
        bias: bool,
        *,
        layout: WeightLayout = PACKED,
    ) -> None:
        super().__init__()
        self.gate_up = Linear(hidden, 2 * intermediate, dtype, bias, layout=layout)
        self.down = Linear(intermediate, hidden, dtype, bias, layout=layout)

    def forward(self, x: Tensor) -> Tensor:
        """``x [T, hidden]`` -> ``[T, hidden]``."""
        gate, up = self.gate_up(x).float().chunk(2, dim=-1)
        # silu written out: torch's own kernel rounds an array's tail differently from its body,
        # which would let the number of rows in a call change a row's bits.
        product = gate / (1 + torch.exp(-gate)) * up
        down: Tensor = self.down(product.to(x.dtype))
        return down
