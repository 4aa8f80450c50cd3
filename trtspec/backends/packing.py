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
    """The state of a draft's request: its slot; the snapshot that it is restored from before the
    call, and the one that it is copied to afterwards, -1: none."""

    slot: int
    source: int = -1
    snapshot: int = -1


@dataclass(frozen=True)
class RowGroup:
    """The rows of one request: tokens after its committed ones; draft nodes may follow if its root
    is the only token. ``last_logits``: logits of the last token and of the nodes are wanted.
    blocks: int32 [n], the request's block table. gap: tokens in addition to the ``context`` rows
    that are held: positions exceed places in the cache by this number. state: for a draft with
    recurrent states."""

    tokens: Sequence[int]
    context: int
    blocks: Tensor
    last_logits: bool = True
    gap: int = 0
    state: GroupState | None = None


class RowBatch(NamedTuple):
    """``rows`` of an engine call, those whose logits are wanted (``logits_rows`` int64 [R], in
    order), and ``cached_tokens`` whose K/V it reads: committed ones and the rows' own.
    ``state_slots``: for a network with recurrent states, those of the requests, int32 [B].
    ``adapters``: the slot of each row's adapter, int32 [T]; -1: none."""

    rows: RowInputs
    logits_rows: Tensor
    cached_tokens: int
    state_slots: Tensor | None = None
    adapters: Tensor | None = None


def pack(
    groups: Sequence[RowGroup], layout: CacheLayout, drafts: DraftBatch | None = None
) -> RowBatch:
    """The rows of these requests, each followed by its ``drafts``.

    RuntimeError for rows that do not fit the blocks of their request, or blocks that do not fit the
    layout.
    """
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
    """The same for the items of a step's plan, given its ``table`` and the blocks of each."""
    _, pack = _packer(layout)
    return _packed(pack(table, blocks, drafts.address))


def _packed(packed: tuple[list[Tensor], int]) -> RowBatch:
    (*rows, logits_rows, adapters), cached_tokens = packed
    return RowBatch(RowInputs._make(rows), logits_rows, cached_tokens, adapters=adapters)


@cache
def _packer(layout: CacheLayout) -> tuple[Any, Any]:
    """The methods of the C++ packer, which its step loop uses as well; looking one up takes as long
    as packing a few rows."""
    sizes = layout.tokens_per_block, layout.blocks_per_sequence, layout.mask_words
    packer = torch.classes.trtspec.RowPacker(*sizes)
    return packer.pack, packer.pack_plan
