"""The embedding of tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Embedding(nn.Module):
    """Token embedding as a plain buffer ``weight [V, H]``."""

    weight: Tensor

    def __init__(self, vocab_size: int, hidden: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("weight", torch.empty(vocab_size, hidden, dtype=dtype))

    def forward(self, ids: Tensor) -> Tensor:
        """``ids [T] i64`` -> ``[T, H]``."""
        return self.weight[ids]


def rounded_scale(scale: float, dtype: torch.dtype) -> float:
    """A factor on rows of an embedding, rounded as they are: Gemma was trained with such a one."""
    return float(torch.tensor(scale, dtype=dtype, device="cpu"))
