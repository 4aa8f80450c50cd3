"""The layers that every decoder shares. On CPUs all are row-invariant: a row's bits ignore its
neighbours.

Weights are buffers, not parameters: engines only infer, and a builder carries them as constants.
Fresh layers hold uninitialised memory until weights are loaded.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trtspec.models import onnx_ops
from trtspec.ops.linear import PANEL, linear, pack_linear


class Linear(nn.Module):
    """A linear layer, or several fused along their outputs.

    The weight is a buffer in one of two layouts. ``packed``, for CPUs: ``packed [ceil(N / 64), K,
    64]`` with ``packed[p, k, c] = W[64 p + c, k]``, zero beyond N, for `trtspec.ops.linear`, whose
    row sums are taken in float32 in the order of k. Otherwise ``weight [N, K]``, for torch's own
    product. With ``bias`` there is ``bias [N]`` too.
    """

    packed: Tensor
    weight: Tensor
    bias: Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        dtype: torch.dtype,
        bias: bool = False,
        *,
        packed: bool = True,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.is_packed = packed
        if packed:
            panels = -(-out_features // PANEL)
            self.register_buffer("packed", torch.empty(panels, in_features, PANEL, dtype=dtype))
        else:
            self.register_buffer("weight", torch.empty(out_features, in_features, dtype=dtype))
        self.register_buffer("bias", torch.empty(out_features, dtype=dtype) if bias else None)

    def forward(self, x: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
        """``x [T, K]`` -> ``[T, N]`` in ``out_dtype`` (x's dtype if None), rounded once."""
        if self.is_packed:
            return linear(x, self.packed, self.bias, self.out_features, out_dtype)
        if out_dtype in (None, x.dtype):
            return F.linear(x, self.weight, self.bias)
        if not x.is_cuda:
            bias = None if self.bias is None else self.bias.to(out_dtype)
            return F.linear(x.to(out_dtype), self.weight.to(out_dtype), bias)
        # Logits of 16-bit weights: a product that is not rounded to 16 bits on its way.
        assert out_dtype is not None
        y = torch.mm(x, self.weight.t(), out_dtype=out_dtype)
        return y if self.bias is None else y + self.bias

    def gather_rows(self, ids: Tensor) -> Tensor:
        """Rows ``W[ids]`` as ``[T, K]``: the embedding of a model that ties it to its head."""
        if self.is_packed:
            return self.packed[ids // PANEL, :, ids % PANEL]
        return self.weight[ids]

    def load(self, weights: Sequence[Tensor], biases: Sequence[Tensor] = ()) -> None:
        """Fill from weights ``[n_i, K]`` (sum of n_i = N) in output order, and their biases."""
        weight = torch.cat(list(weights))
        if self.is_packed:
            self.packed.copy_(pack_linear(weight))
        else:
            self.weight.copy_(weight)
        if self.bias is not None:
            self.bias.copy_(torch.cat(list(biases)))


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
        self, hidden: int, intermediate: int, dtype: torch.dtype, bias: bool, *, packed: bool = True
    ) -> None:
        super().__init__()
        self.gate_up = Linear(hidden, 2 * intermediate, dtype, bias, packed=packed)
        self.down = Linear(intermediate, hidden, dtype, bias, packed=packed)

    def forward(self, x: Tensor) -> Tensor:
        """``x [T, hidden]`` -> ``[T, hidden]``."""
        gate, up = self.gate_up(x).float().chunk(2, dim=-1)
        # silu written out: torch's own kernel rounds an array's tail differently from its body,
        # which would let the number of rows in a call change a row's bits.
        product = gate / (1 + torch.exp(-gate)) * up
        down: Tensor = self.down(product.to(x.dtype))
        return down
