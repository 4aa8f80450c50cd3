"""Packed rows: the tokens of many requests as the input tensors of one engine call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from trtspec.backends.inputs import RowInputs
from trtspec.config.kv import CacheLayout
from trtspec.ops import native  # noqa: F401  registers the class
from trtspec.ops.draft_batch import DraftBatch


@dataclass(frozen=True)
class RowGroup:
    """The rows of one request: tokens behind its committed ones; draft nodes may follow, if its
    root is the only token. ``last_logits`` wants logits of the last token and of the nodes. blocks:
    int32 [n], the request's block table.
    """

    tokens: Sequence[int]
    context: int
    blocks: Tensor
    last_logits: bool = True


def pack(
    groups: Sequence[RowGroup], layout: CacheLayout, drafts: DraftBatch | None = None
) -> tuple[RowInputs, Tensor]:
    """Return the rows of an engine call, and the logits rows (int64, in order). ``drafts``: behind
    the rows of each group.

    RuntimeError for rows that do not fit the blocks of their request, or those the layout."""
    *rows, logits_rows = _packer(layout)(
        [token for group in groups for token in group.tokens],
        [len(group.tokens) for group in groups],
        [group.context for group in groups],
        [group.blocks for group in groups],
        [group.last_logits for group in groups],
        0 if drafts is None else drafts.address,
    )
    return RowInputs._make(rows), logits_rows


@cache
def _packer(layout: CacheLayout) -> Any:
    """The packer of C++, which its step loop uses as well: its method, as looking it up takes as
    long as packing a few rows."""
    sizes = layout.tokens_per_block, layout.blocks_per_sequence, layout.mask_words
    return torch.classes.trtspec.RowPacker(*sizes).pack
