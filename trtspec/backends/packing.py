"""Packed rows: the tokens of many requests as the input tensors of one engine call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trtspec.backends.inputs import RowInputs
from trtspec.config.kv import CacheLayout
from trtspec.ops import native  # noqa: F401  registers the class
from trtspec.ops.draft_batch import DraftBatch


class GroupState(NamedTuple):
    """Where the state of a draft's request is: its slot; the snapshot that it is copied from before
    the call, and where it is copied to behind it, -1: neither."""

    slot: int
    source: int = -1
    snapshot: int = -1


@dataclass(frozen=True)
class RowGroup:
    """The rows of one request: tokens behind its committed ones; draft nodes may follow, if its
    root is the only token. ``last_logits`` wants logits of the last token and of the nodes. blocks:
    int32 [n], the request's block table. gap: tokens that it has beside the ``context`` rows which
    are held: positions are so many further than places in the cache. state: of a draft that keeps
    states.
    """

    tokens: Sequence[int]
    context: int
    blocks: Tensor
    last_logits: bool = True
    gap: int = 0
    state: GroupState | None = None


class RowBatch(NamedTuple):
    """``rows`` of an engine call, those whose logits are wanted (``logits_rows`` int64 [R], in
    order), and ``cached_tokens`` whose K/V it reads: those committed, and the rows' own.
    ``state_slots``: of a network that keeps states, those of the requests, int32 [B]. ``adapters``:
    where each row's adapter lies among those of the engine, int32 [T]; -1: it has none."""

    rows: RowInputs
    logits_rows: Tensor
    cached_tokens: int
    state_slots: Tensor | None = None
    adapters: Tensor | None = None


def pack(
    groups: Sequence[RowGroup], layout: CacheLayout, drafts: DraftBatch | None = None
) -> RowBatch:
    """The rows of these requests, and ``drafts`` behind those of each.

    RuntimeError for rows that do not fit the blocks of their request, or those the layout."""
    pack, _ = _packer(layout)
    states = [group.state.slot for group in groups if group.state is not None]
    packed = _packed(
        pack(
            [token for group in groups for token in group.tokens],
            [len(group.tokens) for group in groups],
            [group.context for group in groups],
            [group.gap for group in groups],
            [group.blocks for group in groups],
            [group.last_logits for group in groups],
            0 if drafts is None else drafts.address,
        )
    )
    return packed._replace(state_slots=torch.tensor(states, dtype=torch.int32) if states else None)


def pack_plan(
    table: Tensor, blocks: Sequence[Tensor], layout: CacheLayout, drafts: DraftBatch
) -> RowBatch:
    """The same of the items of a step's plan, given its ``table`` and the blocks of each."""
    _, pack = _packer(layout)
    return _packed(pack(table, blocks, drafts.address))


def _packed(packed: tuple[list[Tensor], int]) -> RowBatch:
    (*rows, logits_rows, adapters), cached_tokens = packed
    return RowBatch(RowInputs._make(rows), logits_rows, cached_tokens, adapters=adapters)


@cache
def _packer(layout: CacheLayout) -> tuple[Any, Any]:
    """The packer of C++, which its step loop uses as well: its methods, as looking one up takes as
    long as packing a few rows."""
    sizes = layout.tokens_per_block, layout.blocks_per_sequence, layout.mask_words
    packer = torch.classes.trtspec.RowPacker(*sizes)
    return packer.pack, packer.pack_plan
