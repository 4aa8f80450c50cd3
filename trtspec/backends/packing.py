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


def pack(groups: Sequence[RowGroup], layout: CacheLayout) -> tuple[RowInputs, Tensor]:
    """Return the rows of an engine call, and the logits rows (int64, in order).

    RuntimeError for rows that do not fit the blocks of their request, or those the layout."""
    none = TokenTree.empty().address
    *rows, logits_rows = _packer(layout)(
        [token for group in groups for token in group.tokens],
        [len(group.tokens) for group in groups],
        [group.context for group in groups],
        [group.blocks for group in groups],
        [none if group.tree is None else group.tree.address for group in groups],
        [group.last_logits for group in groups],
    )
    return RowInputs._make(rows), logits_rows


@cache
def _packer(layout: CacheLayout) -> Any:
    """The packer of C++, which its step loop uses as well: its method, as looking it up takes as
    long as packing a few rows."""
    sizes = layout.tokens_per_block, layout.blocks_per_sequence, layout.mask_words
    return torch.classes.trtspec.RowPacker(*sizes).pack
