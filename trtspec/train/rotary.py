"""Rotary: cos and sin in the layout of Hugging Face's layers, by the tables of this package."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trtspec.config.rope import RopeConfig
from trtspec.models.rope import inverse_frequencies


class Rotary(nn.Module):
    """Plain rotary embedding of heads of ``head_dim`` elements. Its frequencies are no part of a
    checkpoint."""

    inv_freq: Tensor

    def __init__(self, theta: float, head_dim: int) -> None:
        super().__init__()
        frequencies, _ = inverse_frequencies(RopeConfig(theta), head_dim)
        self.register_buffer("inv_freq", frequencies, persistent=False)

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Cos and sin ``[B, T, head_dim]`` of ``position_ids [B, T] i64``, in the dtype of x."""
        with torch.autocast(x.device.type, enabled=False):
            half = position_ids[..., None].float() * self.inv_freq
            angles = torch.cat((half, half), -1)
            return angles.cos().to(x.dtype), angles.sin().to(x.dtype)
