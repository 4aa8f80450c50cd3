"""The model of `lag_model` as a target that is told the rows of each step, with a drafter."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from trtspec.backends.packing import RowBatch
from trtspec.config.kv import CacheLayout
from trtspec.executor.engines.step_states import StateMoves, TakenNodes
from trtspec.executor.schedule.resources import DraftCache
from trtspec.executor.step.drafter import DraftCacheNeeds, Drafter, DrafterNeeds
from trtspec.executor.step.request import Request
from trtspec.executor.step.step_plan import ScheduledRequest, StepPlan
from trtspec.executor.step.step_result import StepResult
from trtspec.ops.draft_batch import DraftBatch
from trtspec.ops.tree import TokenTree

from .lag_model import Model, Rows, digest, feed, feed_tree, slots, took_in

ItemStates = tuple[int, int, int, int]
"""A column of `StepStates`: slot, source, snapshot, rows."""
_NO_STATE = -1, -1, -1, -1


def states_of(plan: StepPlan) -> list[ItemStates]:
    """Of each item of a plan, without snapshots of targets that keep no states."""
    if plan.states is None:
        return [_NO_STATE] * len(plan.items)
    return list(zip(*(column.tolist() for column in plan.states), strict=True))


@dataclass
class Memory:
    """What target and drafts share. caches: the target's rows, then the draft's, if it has any.
    texts: of each request, for drafts to find. faults: what went wrong. in_flight: launches that
    were not collected. plan, drafts: of the step that the host takes."""

    model: Model
    block: int
    caches: list[Rows]
    texts: Mapping[int, Sequence[int]]
    faults: list[str] = field(default_factory=list)
    in_flight: int = 0
    plan: StepPlan = field(default_factory=lambda: StepPlan(()))
    drafts: DraftBatch = field(default_factory=lambda: DraftBatch.none(0))
    states: dict[int, int | None] = field(default_factory=dict)  # of slots
    num_restored: int = 0

    def take_in(self, states: ItemStates, tokens: Sequence[int], start: int) -> None:
        """A state goes from the first ``start`` tokens to all of them."""
        slot, source, snapshot, border = states
        if source >= 0:
            self.num_restored += 1
            self.states[slot] = self.states.get(source)
        state = self.states.get(slot) if start else digest([])
        if state != digest(tokens[:start]):
            self.faults.append(f"the state in slot {slot} is not that of {start} tokens")
        for taken, token in enumerate(tokens[start:], start + 1):
            state = took_in(state, token)
            if taken == border and snapshot >= 0:
                self.states[snapshot] = state
        self.states[slot] = state

    def copy_states(self, source: Tensor, wanted: Tensor) -> None:
        found = [self.states.get(slot) for slot in source.tolist()]
        self.states.update(zip(wanted.tolist(), found, strict=True))

    def draft(
        self, request: Request, index: int, item: ScheduledRequest
    ) -> tuple[list[int], list[int]]:
        """The tree behind output token ``index - 1``."""
        if not item.is_generation:
            return [], []
        depth = min(request.max_output_tokens - index - 1, request.max_draft_len)
        text = self.texts[request.id]
        return self.model.tree(request.id, text, index, item.max_nodes, depth)

    def feed_draft(
        self, tables: Sequence[Sequence[int]], tokens: Sequence[int], first: int, known: int
    ) -> None:
        """The rows of tokens from ``first`` on in the draft's cache, which are to be what the
        target's are; ``known`` of these are there."""
        places = slots(tables[1], self.block, 0, len(tokens))
        feed(self.model, self.caches[1], places, first, tokens[first:])
        others = slots(tables[0], self.block, 0, known)
        pairs = [pair for pair in zip(places, others, strict=False) if min(pair) >= 0]
        if any(self.caches[1][own] != self.caches[0][other] for own, other in pairs):
            self.faults.append("the draft's rows are not those of the text")


class HostTarget:
    """Stands in for a `ModelEngine`. failing: calls that raise."""

    verifies = False

    def __init__(self, memory: Memory, failing: Set[int]) -> None:
        self.layout = CacheLayout(memory.block, 100, 1)
        self.vocab_size = memory.model.vocab
        self.num_calls = 0
        self._memory = memory
        self._failing = failing
        self._fed: list[int] = []  # tokens of the last call
        self.copy_states = memory.copy_states

    def move_states(self, moves: StateMoves) -> None:
        self._replay(moves.before)
        self.copy_states(moves.source, moves.wanted)
        self._replay(moves.behind)

    def _replay(self, taken: TakenNodes) -> None:
        spans = pairwise(taken.row_start.tolist())
        for slot, (first, end) in zip(taken.state_slots.tolist(), spans, strict=True):
            for row in taken.rows[first:end].tolist():
                state = self._memory.states[slot]
                self._memory.states[slot] = took_in(state, self._fed[row])

    def forward(self, packed: RowBatch) -> tuple[Tensor, None]:
        self.num_calls += 1
        if self.num_calls - 1 in self._failing:
            raise RuntimeError("a call fails on purpose")
        if self._memory.in_flight:
            self._memory.faults.append("the host takes a step beside the device")
        memory, model = self._memory, self._memory.model
        chosen: list[int | None] = []
        self._fed.clear()
        states = states_of(memory.plan)
        planned = zip(memory.plan.items, memory.plan.blocks, memory.drafts, states, strict=True)
        for item, blocks, drafts, (slot, *_) in planned:
            request, end = item.request, item.start + item.num_rows
            tree = drafts.tokens.tolist(), drafts.parents.tolist()
            places = slots(blocks.tolist(), memory.block, 0, end + len(tree[0]))
            fed = request.tokens[item.start : end]
            self._fed += [*fed, *tree[0]]
            if slot >= 0:
                memory.take_in((slot, -1, -1, -1), request.tokens[:end], item.start)
            rows = feed(model, memory.caches[0], places, item.start, fed)[-1:]
            rows += feed_tree(model, memory.caches[0], places, end - 1, tree)
            depths = [0]
            for parent in tree[1]:
                depths.append(1 + depths[parent + 1])
            if item.samples:
                index = request.num_output_tokens
                for row, depth in zip(rows, depths, strict=True):
                    chosen.append(model.next(row, request.seed, index + depth))
        logits = torch.zeros(len(packed.logits_rows), model.vocab)
        for row, token in enumerate(chosen):
            if token is None:
                logits[row] = torch.nan
            else:
                logits[row, token] = 9.0
        return logits, None

    def compact(self, src_slots: Tensor, dst_slots: Tensor) -> None:
        cache = self._memory.caches[0]
        moved = [cache[slot] for slot in src_slots.tolist()]
        for slot, row in zip(dst_slots.tolist(), moved, strict=True):
            cache[slot] = row


class HostDrafter(Drafter):
    """Guesses the text that it knows. ``on_host``: percent of the steps whose drafts are made on
    the host, of an executor with a device."""

    live_requests: Set[int] = frozenset()

    def __init__(self, memory: Memory, slots: int | None, on_host: int, seed: int) -> None:
        model = memory.model
        caches = () if slots is None else (DraftCacheNeeds(slots, from_tokens=True),)
        nodes = model.depth * model.width
        self.needs = DrafterNeeds(nodes, model.depth, caches if nodes else ())
        self.caches: Sequence[DraftCache] = ()
        self._memory = memory
        self._on_host = on_host
        self._random = random.Random(seed)

    def needs_host(self) -> bool:
        return self._random.randrange(100) < self._on_host

    def prepare_draft_tokens(self, batch: StepPlan) -> DraftBatch:
        memory = self._memory
        memory.plan = batch
        trees = []
        for item, blocks in zip(batch.items, batch.blocks, strict=True):
            request = item.request
            for cache in self.caches if feeds_draft(item) else ():
                tables = blocks.tolist(), cache.block_table(request).tolist()
                tokens = request.tokens[: item.start + item.num_rows]
                memory.feed_draft(tables, tokens, cache.committed(request), item.start)
            tokens, parents = memory.draft(request, request.num_output_tokens, item)
            trees.append(TokenTree(tokens, parents) if tokens else None)
        memory.drafts = DraftBatch.of(trees)
        return memory.drafts

    def on_accepted(self, batch: StepPlan, result: StepResult) -> list[tuple[int, ...]]:
        return [
            tuple(
                item.start + item.num_rows if feeds_draft(item) else cache.committed(item.request)
                for cache in self.caches
            )
            for item in batch.items
        ]

    def release(self, request_id: int) -> None:
        pass


def feeds_draft(item: ScheduledRequest) -> bool:
    """Whether the draft's cache gets the rows of the item."""
    return item.request.may_draft and (not item.is_generation or item.max_nodes > 0)
