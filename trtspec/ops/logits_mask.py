"""Masks of logits: what happens to rows before they are sampled, known before they are computed.

``biases`` are sparse: row, token id and the float32 that is added to that logit; -inf: the token
must not come, whatever its logit. Those of ids beyond the vocabulary are ignored. ``allowed`` has a
bit a token, v % 32 of word v // 32: without it token v must not come, nor may ids that have no bit.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trtspec.ops import native  # noqa: F401  registers the op

BITS = 32
"""Tokens in a word of a packed mask."""


class MaskColumns(NamedTuple):
    """The mask of R rows, as the ops take it. None: nothing of that kind happens.

    allowed: ``i32 [R, W]``. bias_rows, bias_ids ``i64 [n]`` and bias_values ``f32 [n]``: all or
    none, ordered by row, then by id.
    """

    allowed: Tensor | None = None
    bias_rows: Tensor | None = None
    bias_ids: Tensor | None = None
    bias_values: Tensor | None = None

    def replaced(self, tensors: list[Tensor]) -> MaskColumns:
        """With these in place of those that are there, in their order."""
        left = iter(tensors)
        return MaskColumns._make(None if column is None else next(left) for column in self)


def mask_logits(logits: Tensor, mask: MaskColumns) -> None:
    """Change float32 ``logits [R, V]``, contiguous, in place: biases are added, equal ids of a row
    in their order; then what must not come is -inf.

    RuntimeError if the tensors do not fit, or a bias is of a row that is not there. On CUDA, where
    the host does not look at values, such a bias is written elsewhere.
    """
    torch.ops.trtspec.mask_logits(logits, *mask)


def mask_logits_reference(logits: Tensor, mask: MaskColumns) -> None:
    """`mask_logits`, written for reading."""
    rows, vocab = logits.shape
    if mask.bias_rows is not None and mask.bias_ids is not None and mask.bias_values is not None:
        biases = zip(mask.bias_rows.tolist(), mask.bias_ids.tolist(), mask.bias_values, strict=True)
        for row, token, value in biases:
            if 0 <= token < vocab:
                never = bool(torch.isneginf(value))
                logits[row, token] = value if never else logits[row, token] + value
    if mask.allowed is not None:
        may_come = torch.zeros(rows, vocab, dtype=torch.bool)
        bits = unpack_bits(mask.allowed)[:, :vocab]
        may_come[:, : bits.shape[1]] = bits
        logits.masked_fill_(~may_come, -torch.inf)


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
