"""Packed rows: the tokens of many requests as the input tensors of one engine call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trtspec.config.kv import CacheLayout
from trtspec.ops.tree import TokenTree


@dataclass(frozen=True)
class RowGroup:
    """The rows of one request: tokens behind its committed ones, then the nodes of its tree.

    A tree needs its root to be the only token. ``all_logits`` wants logits of every row (verify),
    ``last_logits`` of the last token only (end of a prefill).
    """

    tokens: Sequence[int]
    context: int
    blocks: Sequence[int]
    tree: TokenTree | None = None
    last_logits: bool = True

    @property
    def num_rows(self) -> int:
        return len(self.tokens) + (len(self.tree) if self.tree else 0)

    @property
    def num_logits(self) -> int:
        """Logits rows: the root and the nodes of its tree, or none in the middle of a prefill."""
        return 1 + self.num_rows - len(self.tokens) if self.last_logits else 0


def pack(groups: Sequence[RowGroup], layout: CacheLayout) -> tuple[list[Tensor], Tensor]:
    """Return the eight row inputs of an engine call, and the logits rows (int64, in order)."""
    counts = np.fromiter((g.num_rows for g in groups), np.int32, len(groups))
    starts = np.zeros(len(groups) + 1, np.int32)
    np.cumsum(counts, out=starts[1:])
    total = int(starts[-1])

    ids = np.empty(total, np.int64)
    positions = np.empty(total, np.int64)
    slots = np.empty(total, np.int64)
    masks = np.zeros((total, layout.mask_words), np.int64)
    tables = np.full((len(groups), layout.blocks_per_sequence), -1, np.int32)
    context = np.fromiter((g.context for g in groups), np.int32, len(groups))
    is_tree = np.zeros(len(groups), np.bool_)
    wanted: list[np.ndarray] = []

    for i, group in enumerate(groups):
        begin, end = int(starts[i]), int(starts[i + 1])
        fed = begin + len(group.tokens)
        ids[begin:fed] = group.tokens
        positions[begin:end] = cache = np.arange(group.context, group.context + end - begin)
        table = tables[i]
        table[: len(group.blocks)] = group.blocks
        block, offset = np.divmod(cache, layout.tokens_per_block)
        slots[begin:end] = table[block].astype(np.int64) * layout.tokens_per_block + offset
        if group.tree:
            ids[fed:end] = group.tree.tokens
            positions[fed:end] = group.context + group.tree.depths
            masks[begin:end] = group.tree.mask(layout.mask_words)
            is_tree[i] = True
        if group.last_logits:
            wanted.append(np.arange(fed - 1, end, dtype=np.int64))

    rows = [ids, positions, slots, tables, starts, context, is_tree, masks]
    logits_rows = np.concatenate(wanted) if wanted else np.empty(0, np.int64)
    return [torch.from_numpy(x) for x in rows], torch.from_numpy(logits_rows)
