"""Teacher: the target's next-token logits, from its recorded hidden states."""

from __future__ import annotations

import torch
from torch import Tensor

from trtspec.models.causal_lm import capped
from trtspec.train.products import product_dtype
from trtspec.train.target import TrainingTarget


class Teacher:
    """A target's final norm and head. ``rows``: the ids ``[n] i64`` whose logits are wanted; None:
    all."""

    def __init__(self, target: TrainingTarget, rows: Tensor | None, device: str) -> None:
        head = target.head if rows is None else target.head[rows]
        self._head = head.to(device, product_dtype(device))
        self._norm = target.norm.to(device)
        self._eps = target.config.norm.eps
        self._spec = target.config.head

    @torch.no_grad()
    def logits(self, states: Tensor, normed: bool) -> Tensor:
        """Logits ``[..., n]`` in `product_dtype`, from the target's last hidden states ``[...,
        H]``, after its final norm or before it."""
        if not normed:
            wide = states.float()
            scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self._eps)
            states = wide * scale * self._norm
        logits = states.to(self._head.dtype) @ self._head.T
        if self._spec.scale != 1.0:
            logits = logits * self._spec.scale
        return capped(logits, self._spec.soft_cap)
