"""The short causal convolution in front of mixers with a recurrent state."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trtspec.config.quantised import Weights
from trtspec.formats.stored import read_tensor
from trtspec.ops.causal_conv import causal_conv
from trtspec.ops.state_walk import StateWalk


class CausalConv(nn.Module):
    """Buffers ``weight [W, C]`` and, with ``bias``, ``bias [C]``; see `trtspec.ops.causal_conv`."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, channels: int, width: int, bias: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("weight", torch.empty(width, channels, dtype=dtype))
        self.register_buffer("bias", torch.empty(channels, dtype=dtype) if bias else None)

    def forward(self, x: Tensor, tail: Tensor, kept: Tensor, walk: StateWalk) -> Tensor:
        """``x [T, C]`` -> ``[T, C]``; ``tail`` and ``kept`` are those of `conv_buffers`."""
        return causal_conv(x, self.weight, self.bias, tail, kept, walk)

    def load(self, tensors: Weights, name: str) -> None:
        """Load from ``{name}.weight [C, 1, W]`` and ``{name}.bias [C]``."""
        self.weight.copy_(read_tensor(tensors, f"{name}.weight").squeeze(1).t())
        if self.bias is not None:
            self.bias.copy_(read_tensor(tensors, f"{name}.bias"))
