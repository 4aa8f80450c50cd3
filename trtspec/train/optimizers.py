"""Optimizers: Muon for a head's matrices, AdamW for the rest, with one schedule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trtspec.train.muon import Muon
from trtspec.train.products import product_dtype

_WARMUP, _FLOOR = 50, 0.01
_CLIP = 1.0


class Optimizers:
    """``rate`` is for the matrices, ``vocabulary_rate`` for the vocabulary head and the norms. Both
    rise over the first 50 steps and fall to a hundredth at ``steps``."""

    def __init__(self, head: nn.Module, steps: int, rate: float, vocabulary_rate: float) -> None:
        named = [(n, p) for n, p in head.named_parameters() if p.requires_grad]
        body = [p for n, p in named if p.ndim == 2 and "lm_head" not in n]
        rest = [p for n, p in named if p.ndim != 2 or "lm_head" in n]
        self._parameters: Sequence[Tensor] = [p for _, p in named]
        self._all: list[tuple[torch.optim.Optimizer, float]] = []
        if body:
            self._all.append((Muon(body, rate, product_dtype(body[0].device.type)), rate))
        if rest:
            adamw = torch.optim.AdamW(rest, lr=vocabulary_rate, betas=(0.9, 0.95), weight_decay=0.0)
            self._all.append((adamw, vocabulary_rate))
        self._steps = steps

    def step(self, index: int) -> None:
        """Apply the gradients of step ``index`` (from 0) and clear them."""
        torch.nn.utils.clip_grad_norm_(self._parameters, _CLIP)
        warmup = min(1.0, (index + 1) / _WARMUP)
        decay = max(_FLOOR, 1 - index / self._steps)
        for optimizer, peak in self._all:
            for group in optimizer.param_groups:
                group["lr"] = peak * warmup * decay
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> list[dict[str, Any]]:
        return [optimizer.state_dict() for optimizer, _ in self._all]

    def load_state_dict(self, states: Sequence[dict[str, Any]]) -> None:
        for (optimizer, _), state in zip(self._all, states, strict=True):
            optimizer.load_state_dict(state)
