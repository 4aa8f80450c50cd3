"""``pack_verify``, ``pack_rollout`` and ``advance``: the step of requests that live on a device.

What is known of a request lies at its *place*, the same row of several tensors, and ``advance``
keeps it up to date, so that the next step needs nothing from the host but which places to feed
(``items``). All shapes depend on the sizes of the call alone; what is not used is padding, as in
`trtspec.executor.engines.buckets`. The structs of cpp/include/trtspec/resident_step.hpp say what
each column means, in the order of `STATE` and `ITEM`.

    ========  ==============================  ==================================================
    state     int64 [places, len(STATE)]      lengths, the newest token, the end, sampling values
    filters   float32 [places, 3]             temperature, top_p, min_p
    ends      int64 [places, E]               tokens that end the text, -1 behind them
    tables    int32 [places, M]               blocks in a cache, -1 behind them
    pairs     int64 [places, ring]            tokens of the pairs that a draft was not fed yet
    items     int64 [B, len(ITEM)]            what the step feeds; place -1 is padding
    chunk     int64 [K]                       tokens of the prompts that the step feeds
    ========  ==============================  ==================================================

A draft that reads the target's hidden states is fed *pairs*: the state at a position and the token
behind it, as row position + ``behind`` of its own text; one that reads tokens alone is fed those of
pairs, with ``behind`` 1. Those that it is still to be fed, or to be fed again (the last
``not_final`` of each call), wait in a ring: that of position p at p % ring.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trtspec.ops import native  # noqa: F401  registers the ops
from trtspec.ops.sampling import SamplingColumns

STATE = (
    *("length", "num_prompt", "limit", "reach", "newest", "max_depth", "drafted", "absent"),
    *("end", "adapter", "top_k", "seed", "sample_index"),
)
"""The columns of ``state``: ``RequestState``."""
ITEM = ("place", "start", "num_rows", "generates", "max_nodes", "samples", "first_token")
"""The columns of ``items``: ``StepItem``."""


class ResidentTensors(NamedTuple):
    """What the device keeps of its requests, by place (see the module docstring)."""

    state: Tensor
    filters: Tensor
    ends: Tensor
    pairs: Tensor


class Draft(NamedTuple):
    """A rollout's nodes for each item: int64, int32 and float32 ``[B, n]``."""

    tokens: Tensor
    parents: Tensor
    scores: Tensor


class VerifyCall(NamedTuple):
    """The inputs of a target's call of T rows, B items and R wanted logits, and of what verifies
    them.

    rows: the eight tensors of `trtspec.backends.inputs.RowInputs`. logits_rows int64 [R], adapters
    int32 [T] as in `EngineInputs`. columns: of the R rows. tokens int64 [R], parents int32 [R],
    row_start int32 [B + 1]: as `trtspec.ops.acceptance.accept` takes them.
    """

    rows: list[Tensor]
    logits_rows: Tensor
    adapters: Tensor
    columns: SamplingColumns
    tokens: Tensor
    parents: Tensor
    row_start: Tensor


class RolloutCall(NamedTuple):
    """The inputs of a rollout of T rows for B items: ``rows`` as in `VerifyCall`; last_rows int64
    [B], 0 for items without rows; columns of the B items; ring_rows int64 [T]: the place of each
    row's state among all rings, 0 for padding."""

    rows: list[Tensor]
    last_rows: Tensor
    columns: SamplingColumns
    ring_rows: Tensor


class Advanced(NamedTuple):
    """What became of a step of B items, whose walks are P wide.

    result: int64 [B, 4 + 4 P], all that the host is told: the number of emitted tokens, the finish
    reason (``FinishReason``), rows of the draft's text that are in its cache for good, verified
    nodes; then, P values each, the emitted tokens, the rows that emit them, and the tokens and
    parents of the nodes; 0 behind the ends. src_slots, dst_slots: int64 [B, P], what `kv_compact`
    is to move in the target's cache. kept_rows, ring_rows: int64 [B, ring], rows of the call whose
    hidden states wait, and where among all rings; 0 and places * ring behind them.
    """

    result: Tensor
    src_slots: Tensor
    dst_slots: Tensor
    kept_rows: Tensor
    ring_rows: Tensor


def pack_verify(
    kept: ResidentTensors,
    tables: Tensor,
    items: Tensor,
    chunk: Tensor,
    draft: Draft,
    *,
    behind: int,
    num_rows: int,
    num_logits: int,
    tokens_per_block: int,
    mask_words: int,
) -> VerifyCall:
    """The target's call. ``draft``: rolled out for these items; each that rolls out is given what
    it can use of its nodes, as by `DraftBatch.cut`. A request whose text has ended has no rows.

    RuntimeError on a CPU for rows that do not fit their blocks or the call; on CUDA the sizes must
    be right.
    """
    sizes = behind, num_rows, num_logits, tokens_per_block, mask_words
    state, filters, ends, _ = kept
    made = torch.ops.trtspec.pack_verify(state, filters, ends, tables, items, chunk, *draft, *sizes)
    columns = SamplingColumns._make(made[10:17])
    return VerifyCall._make([made[:8], *made[8:10], columns, *made[17:]])


def pack_rollout(
    kept: ResidentTensors,
    tables: Tensor,
    items: Tensor,
    *,
    behind: int,
    num_rows: int,
    tokens_per_block: int,
    mask_words: int,
) -> RolloutCall:
    """The rollout's call: the pairs that wait, for each item that generates, may have nodes and has
    a pair; others have no rows and no blocks. ``tables``: of the draft's cache."""
    sizes = behind, num_rows, tokens_per_block, mask_words
    state, filters, _, pairs = kept
    made = torch.ops.trtspec.pack_rollout(state, filters, tables, pairs, items, *sizes)
    return RolloutCall(made[:8], made[8], SamplingColumns._make(made[9:16]), made[16])


def advance(
    kept: ResidentTensors,
    tables: Tensor,
    items: Tensor,
    chunk: Tensor,
    call: VerifyCall,
    sampled: Tensor,
    accepted_rows: Tensor,
    num_emitted: Tensor,
    *,
    tokens_per_block: int,
    behind: int,
    not_final: int,
) -> Advanced:
    """Emit, end texts, and move on: ``state`` and ``pairs`` are changed. ``tables``: the target's.
    ``sampled`` [R]; ``accepted_rows`` [B, P] and ``num_emitted`` [B] as `accept_trees` gives them.

    The pairs of prompts' rows that do not wait are to be fed to the draft behind this call.
    """
    state, _, ends, pairs = kept
    made = torch.ops.trtspec.advance(
        *(state, pairs, ends, tables, items, chunk, call.rows[4], call.row_start),
        *(call.tokens, call.parents, sampled, accepted_rows, num_emitted),
        *(tokens_per_block, behind, not_final),
    )
    return Advanced(*made)
