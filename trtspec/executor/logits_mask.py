"""LogitsMask: what happens to the logits of a request's rows, as data."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

BITS = 32
"""Tokens in a word of a packed mask."""


@dataclass(frozen=True)
class LogitsMask:
    """What happens to R rows of logits, known before they are; all tensors are on the host.

    biases: token ids ``i64 [n]`` and what is added to their logits ``f32 [n]``, in every row.
    banned: rows ``i64 [m]`` and the token ids ``i64 [m]`` that must not come there.
    allowed: ``i32 [R, W]``: bit v % 32 of word v // 32 says whether token v may come in a row; ids
    that have no bit must not. Left out: nothing of that kind happens.
    """

    biases: tuple[Tensor, Tensor] | None = None
    banned: tuple[Tensor, Tensor] | None = None
    allowed: Tensor | None = None

    def apply(self, logits: Tensor) -> None:
        """Change float32 ``logits [R, V]`` in place: biases first, then -inf for what must not
        come."""
        if self.biases is not None:
            ids, values = (part.to(logits.device) for part in self.biases)
            logits[:, ids] = logits[:, ids] + values
        if self.banned is not None:
            rows, ids = (part.to(logits.device) for part in self.banned)
            logits[rows, ids] = -torch.inf
        if self.allowed is not None:
            bits = unpack_bits(self.allowed.to(logits.device))[:, : logits.shape[1]]
            logits[:, : bits.shape[1]].masked_fill_(~bits, -torch.inf)
            logits[:, bits.shape[1] :] = -torch.inf


def pack_bits(allowed: Tensor) -> Tensor:
    """``bool [R, V]`` as words ``i32 [R, ceil(V / 32)]``; bits behind the last token are 0."""
    rows, count = allowed.shape
    padded = torch.zeros(rows, -(-count // BITS) * BITS, dtype=torch.int64)
    padded[:, :count] = allowed
    words = (padded.view(rows, -1, BITS) << torch.arange(BITS)).sum(-1)
    return words.to(torch.int32)  # keeps the low 32 bits


def unpack_bits(words: Tensor) -> Tensor:
    """The inverse of `pack_bits`: ``bool [R, 32 W]``."""
    shifts = torch.arange(BITS, dtype=torch.int32, device=words.device)
    return (words[:, :, None] >> shifts & 1).bool().flatten(1)
