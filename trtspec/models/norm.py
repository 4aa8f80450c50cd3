"""The norms of decoders, as modules."""

from __future__ import annotations

from typing import ClassVar, TypeAlias

import torch
from torch import Tensor, nn

from trtspec.config.norm_spec import NormSpec
from trtspec.models import export_ops
from trtspec.ops.linear import rms_norm

Size: TypeAlias = int | tuple[int, ...]


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension (see `trtspec.ops.linear.rms_norm`); buffer
    ``weight [size]``. A norm before a single linear layer is passed to that layer, which applies
    it."""

    in_products: ClassVar[bool] = True
    """Whether the product of a linear layer applies it."""

    weight: Tensor

    def __init__(self, size: Size, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.eps = eps
        self.register_buffer("weight", torch.empty(size, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """``x [..., size]`` -> the same shape and dtype."""
        if torch.onnx.is_in_onnx_export():
            return export_ops.rms_norm(x, self.weight, self.eps)
        return rms_norm(x, self.weight, self.eps)

    def scaled(self, x: Tensor, mean_square: Tensor) -> Tensor:
        """The same, given a mean of squares ``[..., 1] f32`` over more than x."""
        return self.weight * (x.float() * torch.rsqrt(mean_square + self.eps)).to(x.dtype)


class OnePlusRMSNorm(RMSNorm):
    """Gemma's: multiplies by 1 + weight, in float32, and rounds once."""

    in_products = False

    def forward(self, x: Tensor) -> Tensor:
        """``x [..., size]`` -> the same shape and dtype."""
        wide, factor = x.float(), 1 + self.weight.float()
        if torch.onnx.is_in_onnx_export():
            return export_ops.rms_norm(wide, factor, self.eps).to(x.dtype)
        return rms_norm(wide, factor, self.eps).to(x.dtype)

    def scaled(self, x: Tensor, mean_square: Tensor) -> Tensor:
        """See `RMSNorm.scaled`."""
        wide = x.float() * torch.rsqrt(mean_square + self.eps)
        return ((1 + self.weight.float()) * wide).to(x.dtype)


class LayerNorm(nn.Module):
    """Deviation from the mean over its root mean square, in float32, rounded once; buffers ``weight
    [size]`` and, with ``bias``, ``bias [size]``. ``size`` may be two numbers: heads, each with
    weights of its own, and the elements of one, which are normed."""

    in_products: ClassVar[bool] = False

    weight: Tensor
    bias: Tensor | None

    def __init__(self, size: Size, eps: float, dtype: torch.dtype, bias: bool) -> None:
        super().__init__()
        self.eps = eps
        self.register_buffer("weight", torch.empty(size, dtype=dtype))
        self.register_buffer("bias", torch.empty(size, dtype=dtype) if bias else None)

    def forward(self, x: Tensor) -> Tensor:
        """``x [..., size]`` -> the same shape and dtype."""
        wide = x.float()
        wide = wide - wide.mean(-1, keepdim=True)
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        scaled = self.weight.float() * scaled
        return (scaled if self.bias is None else scaled + self.bias.float()).to(x.dtype)


Norm: TypeAlias = RMSNorm | LayerNorm


class UnweightedRMSNorm(nn.Module):
    """`RMSNorm` whose weights are all 1."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """``x [..., size]`` -> the same shape and dtype."""
        ones = torch.ones(x.shape[-1], dtype=x.dtype, device=x.device)
        if torch.onnx.is_in_onnx_export():
            return export_ops.rms_norm(x, ones, self.eps)
        return rms_norm(x, ones, self.eps)


def make_norm(spec: NormSpec, size: Size, dtype: torch.dtype) -> Norm:
    """The module of a norm over ``size`` elements; see `LayerNorm` for two numbers."""
    if spec.kind == "layer":
        return LayerNorm(size, spec.eps, dtype, spec.bias)
    return (OnePlusRMSNorm if spec.one_plus else RMSNorm)(size, spec.eps, dtype)
