"""Packed rows: the tokens of many requests as the input tensors of one engine call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from trtspec.config.kv import CacheLayout
from trtspec.ops.tree import TokenTree


@dataclass(frozen=True)
class RowGroup:
    """The rows of one request: tokens behind its committed ones, then the nodes of its tree.

    A tree needs its root to be the only token. ``all_logits`` wants logits of every row (verify),
    ``last_logits`` of the last token only (end of a prefill). blocks: int32 [n], the request's
    block table.
    """

    tokens: Sequence[int]
    context: int
    blocks: Tensor
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
    counts = [g.num_rows for g in groups]
    begins = list(accumulate(counts, initial=0))
    total = begins[-1]

    ids = np.empty(total, np.int64)
    positions = np.empty(total, np.int64)
    places = np.empty(total, np.int64)  # in the cache, counted within the request
    masks = np.zeros((total, layout.mask_words), np.int64)
    tables = np.empty((len(groups), layout.blocks_per_sequence), np.int32)
    tables.fill(-1)
    starts = np.array(begins, np.int32)
    context = np.array([g.context for g in groups], np.int32)
    is_tree = np.zeros(len(groups), np.bool_)
    wanted: list[int] = []

    for i, group in enumerate(groups):
        begin, end = begins[i], begins[i + 1]
        fed = begin + len(group.tokens)
        ids[begin:fed] = group.tokens
        own = np.arange(group.context, group.context + end - begin)
        places[begin:end] = positions[begin:end] = own
        blocks = group.blocks.numpy()
        tables[i, : len(blocks)] = blocks
        if group.tree:
            ids[fed:end] = group.tree.tokens
            np.add(group.tree.rows[2], group.context, out=positions[begin:end])
            masks[begin:end] = group.tree.mask(layout.mask_words)
            is_tree[i] = True
        if group.last_logits:
            wanted.extend(range(fed - 1, end))

    request = np.repeat(np.arange(len(groups)), np.array(counts, np.int64))
    block, offset = np.divmod(places, layout.tokens_per_block)
    # A row's number outgrows the int32 of a block's.
    slots = tables[request, block].astype(np.int64) * layout.tokens_per_block + offset
    rows = [ids, positions, slots, tables, starts, context, is_tree, masks]
    return [torch.from_numpy(x) for x in rows], torch.from_numpy(np.array(wanted, np.int64))
