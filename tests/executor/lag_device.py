"""The model of `lag_model` as an engine that keeps its running requests on a device of its own."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence, Set
from dataclasses import dataclass, field

from torch import Tensor

from trtspec.executor.resident.engine import Entered, Patch
from trtspec.executor.step.request import Request
from trtspec.executor.step.step_plan import ScheduledRequest
from trtspec.executor.step.step_result import StepResult
from trtspec.ops.draft_batch import DraftBatch
from trtspec.ops.tree import TokenTree

from .lag_host import ItemStates, Memory, feeds_draft, states_of
from .lag_model import feed, feed_tree, slots


@dataclass
class Held:
    """What the device holds of a request. rows: valid ones, of each cache. end: why its text has
    ended."""

    request: Request
    tokens: list[int]
    num_prompt: int
    rows: list[int]
    tables: list[list[int]] = field(default_factory=list)
    end: str | None = None

    @classmethod
    def of(cls, entered: Entered) -> Held:
        request = entered.request
        assert not any(entered.absent)
        rows = [entered.committed, *entered.drafted]
        return cls(request, list(entered.tokens), request.num_prompt_tokens, rows)


@dataclass
class Launch:
    """writes: of each cache, which request may write a block, and its place if it generates.
    states: likewise of a slot of a state, and up to which length it may for a snapshot."""

    patch: Patch
    fails: bool
    writes: list[dict[int, tuple[int, int | None]]]
    states: dict[int, tuple[int, int | None]]
    result: StepResult | None = None


class Device:
    """A `ResidentEngine` that computes a launch at any time until it is collected, in their order,
    and sees to it that nobody is given a block which a launch in flight may write.

    failing_launches, failing_collects: numbers of the launches that raise.
    """

    def __init__(
        self,
        memory: Memory,
        slots: int | None,
        seed: int,
        failing_launches: Set[int] = frozenset(),
        failing_collects: Set[int] = frozenset(),
    ) -> None:
        self.patches: list[Patch] = []
        self.most_in_flight = 0
        self.num_emitted = 0
        self._memory = memory
        self._slots = slots
        self._random = random.Random(seed)
        self._failing_launches = failing_launches
        self._failing_collects = failing_collects
        self._held: dict[int, Held] = {}
        self._told: dict[int, tuple[list[int], ...]] = {}
        self._drafted: dict[int, int] = {}  # rows that the draft's cache has at least
        self._requests: dict[int, Request] = {}
        self._queue: deque[Launch] = deque()  # those that are not collected yet

    def holds(self, request: Request) -> bool:
        return True

    def leave(self, request: Request, committed: int) -> None:
        if self._queue or committed != self._held[request.id].rows[0]:
            self._memory.faults.append(f"request {request.id} leaves too early")

    def launch(self, patch: Patch) -> Launch:
        number = len(self.patches)
        self.patches.append(patch)
        if number in self._failing_launches:
            if self._random.random() < 0.5:
                self._compute_all()
                self._apply(patch)
            raise RuntimeError("a launch fails on purpose")
        for id in patch.removed:
            self._told.pop(id, None)
        self._drafted.update({e.request.id: sum(e.drafted) for e in patch.entered})
        self._requests.update({e.request.id: e.request for e in patch.entered})
        self._told.update({id: tuple(map(_ints, tables)) for id, tables in patch.tables.items()})
        claims = self._claim(patch), self._claim_states(patch)
        launch = Launch(patch, number in self._failing_collects, *claims)
        self._queue.append(launch)
        self._memory.in_flight = len(self._queue)
        self.most_in_flight = max(self.most_in_flight, len(self._queue))
        while self._random.random() < 0.3 and self._compute_next():
            pass
        return launch

    def collect(self, handle: Launch) -> StepResult:
        if handle is not self._queue[0]:
            self._memory.faults.append("not the oldest launch is collected")
        if handle.result is None:
            self._compute_next()
        self._queue.popleft()
        self._memory.in_flight = len(self._queue)
        if handle.fails:
            raise RuntimeError("a step fails on purpose")
        assert handle.result is not None
        self.num_emitted += len(handle.result.tokens)
        return handle.result

    def _claim(self, patch: Patch) -> list[dict[int, tuple[int, int | None]]]:
        """Blocks that the launch may write; those that others in flight may write are faults."""
        for id in self._told:
            if id in self._requests and self._requests[id].is_finished:
                self._memory.faults.append(f"nobody removed request {id}")
        claims: list[dict[int, tuple[int, int | None]]] = [{} for _ in self._memory.caches]
        queue = self._queue
        for item in patch.plan.items:
            id = item.request.id
            if id not in self._told:
                self._memory.faults.append(f"nobody told the blocks of request {id}")
                continue
            for cache, table in enumerate(self._told[id]):
                first = (self._drafted.get(id, 0) if cache else item.start) // self._memory.block
                for place, block in enumerate(table):
                    if block < 0:
                        continue
                    if place >= first:
                        claims[cache][block] = id, place if item.is_generation else None
                    if any(self._writes(other.writes[cache].get(block), id) for other in queue):
                        self._memory.faults.append(f"block {block} was given away in flight")
            if feeds_draft(item):
                self._drafted[id] = item.start + item.num_rows
        return claims

    def _claim_states(self, patch: Patch) -> dict[int, tuple[int, int | None]]:
        """Slots that the launch may write; those that others in flight may write are faults."""
        claims: dict[int, tuple[int, int | None]] = {}
        for item, (slot, _, snapshot, border) in zip(
            patch.plan.items, states_of(patch.plan), strict=True
        ):
            id = item.request.id
            own = {slot: (id, None), snapshot: (id, border)}
            own.pop(-1, None)
            for state, claim in own.items():
                for other in [*(launch.states for launch in self._queue), claims]:
                    owner, limit = other.get(state, claim)
                    done = limit is not None and len(self._requests[owner].tokens) - 1 >= limit
                    if owner != id and not done:
                        self._memory.faults.append(f"state {state} was given away in flight")
            claims |= own
        return claims

    def _writes(self, claim: tuple[int, int | None] | None, id: int) -> bool:
        """Whether a claim is another request's, which is not beyond that block by now."""
        if claim is None or claim[0] == id:
            return False
        owner, place = claim
        confirmed = (len(self._requests[owner].tokens) - 1) // self._memory.block
        return place is None or place >= confirmed

    def _compute_all(self) -> None:
        while self._compute_next():
            pass

    def _compute_next(self) -> bool:
        for launch in self._queue:
            if launch.result is None:
                launch.result = self._compute(launch)
                return True
        return False

    def _apply(self, patch: Patch) -> None:
        for id in patch.removed:
            self._held.pop(id, None)
        for entered in patch.entered:
            self._held[entered.request.id] = Held.of(entered)
        for id, tables in patch.tables.items():
            if id in self._held:
                self._held[id].tables = [table.tolist() for table in tables]

    def _compute(self, launch: Launch) -> StepResult:
        self._apply(launch.patch)
        emitted: list[tuple[list[int], list[int]]] = []
        ends: list[str | None] = []
        trees: list[TokenTree | None] = []
        states = states_of(launch.patch.plan)
        for item, of_item in zip(launch.patch.plan.items, states, strict=True):
            held = self._held.get(item.request.id)
            own: tuple[list[int], list[int]] = [], []
            tree: tuple[list[int], list[int]] = [], []
            goes_on = held is not None and held.end is None
            try:
                if held is None:
                    raise LookupError(f"nobody entered request {item.request.id}")
                if goes_on:
                    start = held.rows[0]
                    own, tree = self._advance(held, item)
                    self._take_in(held, of_item, start)
            except Exception as error:
                self._memory.faults.append(f"on the device: {error!r}")
                goes_on = False
            emitted.append(own)
            ends.append(held.end if held is not None and goes_on else None)
            trees.append(TokenTree(*tree) if tree[0] else None)
            if held is not None and launch.fails:
                held.end = "error"
        result = StepResult.of([tokens for tokens, _ in emitted], DraftBatch.of(trees))
        result.rows = [row for _, rows in emitted for row in rows]
        result.ends = ends
        return result

    def _take_in(self, held: Held, states: ItemStates, start: int) -> None:
        if states[0] >= 0:
            self._memory.take_in(states, held.tokens[: held.rows[0]], start)

    def _advance(
        self, held: Held, item: ScheduledRequest
    ) -> tuple[tuple[list[int], list[int]], tuple[list[int], list[int]]]:
        """Take a step of a request: tokens and rows that it emits, and its tree."""
        memory, model, block = self._memory, self._memory.model, self._memory.block
        start = held.rows[0]
        if item.is_generation:
            assert start == len(held.tokens) - 1 >= item.start, "a prompt generates"
        else:
            assert start == item.start, "a chunk is not the next"
        end = start + item.num_rows
        tree = memory.draft(held.request, len(held.tokens) - held.num_prompt, item)
        places = slots(held.tables[0], block, 0, end + len(tree[0]))
        rows = feed(model, memory.caches[0], places, start, held.tokens[start:end])[-1:]
        rows += feed_tree(model, memory.caches[0], places, end - 1, tree)
        if len(held.rows) > 1 and feeds_draft(item):
            memory.feed_draft(held.tables, held.tokens[:end], held.rows[1], end)
            rollout = self._slots or 0 if item.is_generation else 0
            for place in slots(held.tables[1], block, end, end + rollout):
                memory.caches[1][place] = None
            held.rows[1] = end
        held.rows[0] = end
        if not item.samples:
            return ([], []), tree
        tokens, kept = self._walk(held, rows, tree)
        moved = [memory.caches[0][places[end - 1 + row]] for row in kept]
        for place, row in enumerate(moved):
            memory.caches[0][places[end - 1 + place]] = row
        held.rows[0] = end - 1 + max(len(kept), 1)
        held.tokens += tokens
        return (tokens, kept), tree

    def _walk(
        self, held: Held, rows: Sequence[int], tree: tuple[Sequence[int], Sequence[int]]
    ) -> tuple[list[int], list[int]]:
        """The tokens that a request emits, and by which rows."""
        request, model = held.request, self._memory.model
        tokens: list[int] = []
        kept: list[int] = []
        row: int | None = 0
        while row is not None and held.end is None:
            index = len(held.tokens) - held.num_prompt + len(tokens)
            token = model.next(rows[row], request.seed, index)
            if token is None:
                held.end = None if tokens else "error"
                break
            tokens.append(token)
            kept.append(row)
            if token in request.end_tokens:
                held.end = "stop"
            elif index + 1 == request.max_output_tokens:
                held.end = "length"
            children = zip(*tree, strict=True)
            row = next(
                (n + 1 for n, (t, p) in enumerate(children) if p == row - 1 and t == token), None
            )
        return tokens, kept


def _ints(table: Tensor) -> list[int]:
    return [int(block) for block in table.tolist()]
