"""The norm that every decoder shares, as a module of its own."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trtspec.models import export_ops
from trtspec.ops.linear import rms_norm


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension (see `trtspec.ops.linear.rms_norm`); buffer
    ``weight [size]``. A norm that stands before one linear layer is given to that layer, which runs
    it."""

    weight: Tensor

    def __init__(self, size: int, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.eps = eps
        self.register_buffer("weight", torch.empty(size, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """``x [..., size]`` -> the same shape and dtype."""
        if torch.onnx.is_in_onnx_export():
            return export_ops.rms_norm(x, self.weight, self.eps)
        return rms_norm(x, self.weight, self.eps)
