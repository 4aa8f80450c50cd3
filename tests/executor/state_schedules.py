"""Random schedules over a target and drafts that keep states, with a shadow of what each of them
took in."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from trtspec.executor.engines.step_states import StateMoves, TakenNodes
from trtspec.executor.schedule.resources import DraftCache
from trtspec.executor.step.drafter import DraftCacheNeeds
from trtspec.executor.step.request import Request
from trtspec.executor.step.step_plan import ScheduledRequest, StepPlan
from trtspec.executor.step.step_result import StepResult
from trtspec.ops.draft_batch import DraftBatch
from trtspec.ops.kv_cache import StateSizes
from trtspec.ops.tree import TokenTree

from .random_schedules import Simulation
from .random_worlds import World, random_world

NOTHING = 1
"""The digest of a state that took nothing in, as `Simulation.digest` begins."""
REJECTED = -1
"""A token of a node that is not accepted."""


class StateSimulation(Simulation):
    """A state is the digest of the tokens that it took in, by the moves of the books alone; it must
    be that of its request's text at the end of each step."""

    def __init__(self, world: World) -> None:
        rng = random.Random(~world.seed)
        sizes = rng.choice((0, 1, 2, 5, 30)), rng.choice((1, 1, 2, 3))
        self.sizes = StateSizes(world.batch, *sizes)
        self.states: dict[int, int] = {}  # by slot
        self.draft_states: dict[int, dict[int, int]] = {}  # the same of each draft's cache
        self.stepped: set[tuple[int, int]] = set()  # caches of drafts, and requests that have begun
        super().__init__(world)

    def options(self, drafts: Sequence[DraftCacheNeeds]) -> list[dict[str, Any]]:
        target, *others = super().options(drafts)
        for i, (draft, own) in enumerate(zip(drafts, others, strict=False)):
            if draft.from_tokens and not own["window"]:
                own["states"] = self.sizes
                self.draft_states[1 + i] = {}
        return [target | {"states": self.sizes}, *others]

    def take_in(self, batch: StepPlan) -> None:
        """The call takes in all rows but nodes."""
        assert batch.states is not None
        if batch.states.restored is not None:
            self.copy(*(slots.tolist() for slots in batch.states.restored))
            self.events["restored"] += len(batch.states.restored[0])
        for item, slot in zip(batch.items, batch.states.slots.tolist(), strict=True):
            assert slot == self.target.state(item.request.id)
            tokens = item.request.tokens[item.start : item.start + item.num_rows]
            self.fold(slot, tokens, self.states[slot] if item.start else NOTHING)
        super().take_in(batch)
        if any(table.numel() == 0 for table in batch.blocks):
            raise AssertionError("rows without blocks")

    def run_drafter(self, item: ScheduledRequest, cache: int, old: int, kept: int) -> int:
        """A draft with states is fed what is certain, cut where its cache says so."""
        states = self.draft_states.get(cache)
        if states is None:
            return super().run_drafter(item, cache, old, kept)
        request, books = item.request, self.resources.draft_caches[cache - 1]
        start = books.committed(request)
        end = old if item.is_generation else item.start + item.num_rows
        has_none = not request.may_draft or (item.is_generation and item.max_nodes == 0)
        if has_none or self.rng.random() < 0.15:
            return start
        for first, cut in pairwise([start, *self.ends(books, request, start, end)]):
            group = books.rows(request, first, request.tokens[first:cut])
            assert group.state is not None and group.context == first
            slot, source, snapshot = group.state
            assert slot == self.manager(cache).state(request.id)
            if source >= 0:
                states[slot] = states[source]
                self.events["draft restored"] += 1
            self.stepped.add((cache, request.id))
            states[slot] = self.folded(group.tokens, states[slot] if first else NOTHING)
            if snapshot >= 0:
                states[snapshot] = states[slot]
                self.events["draft snapshot"] += 1
                self.events["draft cut"] += cut < end
        self.write_right(request, cache, start, end)
        return end

    def ends(self, books: DraftCache, request: Request, start: int, end: int) -> list[int]:
        """Where a draft's rows are cut; what a negative control changes."""
        return books.ends(request, start, end)

    def move_states(self, batch: StepPlan, result: StepResult) -> None:
        """Nodes that are not accepted have a token of their own, so that none of them is taken in
        unnoticed."""
        fed: list[int] = []
        for i, (item, nodes) in enumerate(zip(batch.items, self.num_nodes, strict=True)):
            tree = [REJECTED] * nodes
            for row, token in zip(result.accepted_rows(i)[1:], result.emitted(i), strict=False):
                tree[row - 1] = token
            fed += [REJECTED] * item.num_rows + tree
        trees = [TokenTree([0] * n, [-1] * n) if n else None for n in self.num_nodes]
        moves = self.moves(batch, replace(result, drafts=DraftBatch.of(trees)))
        self.replay(moves.before, fed)
        self.copy(moves.source.tolist(), moves.wanted.tolist())
        self.events["snapshot"] += len(moves.source)
        self.events["split"] += len(moves.behind.state_slots)
        self.replay(moves.behind, fed)

    def moves(self, batch: StepPlan, result: StepResult) -> StateMoves:
        """Those of a step; what negative controls change."""
        return self.resources.state_moves(batch, result)

    def replay(self, taken: TakenNodes, fed: list[int]) -> None:
        spans = pairwise(taken.row_start.tolist())
        for slot, (first, end) in zip(taken.state_slots.tolist(), spans, strict=True):
            self.fold(slot, [fed[row] for row in taken.rows[first:end].tolist()], self.states[slot])

    def fold(self, slot: int, tokens: Iterable[int], state: int) -> None:
        self.states[slot] = self.folded(tokens, state)

    @staticmethod
    def folded(tokens: Iterable[int], state: int) -> int:
        for token in tokens:
            state = hash((state, token))
        return state

    def copy(self, source: list[int], wanted: list[int]) -> None:
        assert not set(source) & set(wanted) and len(set(wanted)) == len(wanted)
        for slot, to in zip(source, wanted, strict=True):
            self.states[to] = self.states[slot]

    def check(self) -> None:
        super().check()
        running = {id: rows for id, rows in self.target.committed_lengths().items() if rows}
        for id, committed in running.items():
            request: Request = self.live[id]
            if id in self.begun:
                state = self.states[self.target.state(id)]
                assert state == self.digest(request, committed - 1), (id, committed)
        self.stepped = {
            (cache, id) for cache, id in self.stepped if id in self.begun & running.keys()
        }
        for cache, id in self.stepped:
            manager = self.manager(cache)
            state = self.draft_states[cache][manager.state(id)]
            committed = manager.committed(id)
            assert state == self.digest(self.live[id], committed - 1), (cache, id, committed)


def state_world(seed: int) -> World:
    """One with more room for prefixes than most."""
    world = random_world(seed)
    return replace(world, reuse=True, windows=(0, 0, 0, 0)) if seed % 4 else world
