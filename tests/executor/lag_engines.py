"""The model of `lag_model` as a target that is told the rows of each step, with a drafter on the
host; and as an engine that keeps its running requests on a device of its own."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

import torch
from torch import Tensor

from trtspec.backends.packing import RowBatch
from trtspec.config.kv import CacheLayout
from trtspec.executor.drafter import DraftCacheNeeds, Drafter, DrafterNeeds
from trtspec.executor.request import Request
from trtspec.executor.resident import Entered, Patch
from trtspec.executor.resources import DraftCache
from trtspec.executor.step_plan import ScheduledRequest, StepPlan
from trtspec.executor.step_result import StepResult
from trtspec.ops.draft_batch import DraftBatch
from trtspec.ops.tree import TokenTree

from .lag_model import Model, Rows, feed, feed_tree, slots


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

    def draft(
        self, request: Request, index: int, item: ScheduledRequest
    ) -> tuple[list[int], list[int]]:
        """The tree behind output token ``index - 1``."""
        if not item.is_generation:
            return [], []
        depth = request.max_output_tokens - index - 1
        text = self.texts[request.id]
        return self.model.tree(request.id, text, index, item.max_nodes, depth)

    def feed_draft(
        self, tables: Sequence[Sequence[int]], tokens: Sequence[int], first: int, known: int
    ) -> None:
        """The rows of tokens from ``first`` on in the draft's cache, which are to be what the
        target's are; ``known`` of these are there."""
        places = slots(tables[1], self.block, 0, len(tokens))
        feed(self.model, self.caches[1], places, first, tokens[first:])
        own = [self.caches[1][place] for place in places[:known]]
        if own != [self.caches[0][place] for place in slots(tables[0], self.block, 0, known)]:
            self.faults.append("the draft's rows are not those of the text")


class HostTarget:
    """Stands in for a `ModelEngine`. failing: calls that raise."""

    verifies = False

    def __init__(self, memory: Memory, failing: Set[int]) -> None:
        self.layout = CacheLayout(memory.block, 100, 1)
        self.num_calls = 0
        self._memory = memory
        self._failing = failing

    def forward(self, packed: RowBatch) -> tuple[Tensor, None]:
        self.num_calls += 1
        if self.num_calls - 1 in self._failing:
            raise RuntimeError("a call fails on purpose")
        if self._memory.in_flight:
            self._memory.faults.append("the host takes a step beside the device")
        memory, model = self._memory, self._memory.model
        chosen: list[int | None] = []
        planned = zip(memory.plan.items, memory.plan.blocks, memory.drafts, strict=True)
        for item, blocks, drafts in planned:
            request, end = item.request, item.start + item.num_rows
            tree = drafts.tokens.tolist(), drafts.parents.tolist()
            places = slots(blocks.tolist(), memory.block, 0, end + len(tree[0]))
            fed = request.tokens[item.start : end]
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
            for cache in self.caches if _feeds_draft(item) else ():
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
                item.start + item.num_rows if _feeds_draft(item) else cache.committed(item.request)
                for cache in self.caches
            )
            for item in batch.items
        ]

    def release(self, request_id: int) -> None:
        pass


def _feeds_draft(item: ScheduledRequest) -> bool:
    return not item.is_generation or item.max_nodes > 0


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
    """writes: of each cache, which request may write a block."""

    patch: Patch
    fails: bool
    writes: list[dict[int, int]]
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
        launch = Launch(patch, number in self._failing_collects, self._claim(patch))
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

    def _claim(self, patch: Patch) -> list[dict[int, int]]:
        """Blocks that the launch may write; those that others in flight may write are faults."""
        for id in self._told:
            if id in self._requests and self._requests[id].is_finished:
                self._memory.faults.append(f"nobody removed request {id}")
        claims: list[dict[int, int]] = [{} for _ in self._memory.caches]
        for item in patch.plan.items:
            id = item.request.id
            if id not in self._told:
                self._memory.faults.append(f"nobody told the blocks of request {id}")
                continue
            for cache, table in enumerate(self._told[id]):
                first = (self._drafted.get(id, 0) if cache else item.start) // self._memory.block
                for place, block in enumerate(table):
                    if place >= first:
                        claims[cache][block] = id
                    for other in self._queue:
                        if other.writes[cache].get(block, id) != id:
                            self._memory.faults.append(f"block {block} was given away in flight")
            if _feeds_draft(item):
                self._drafted[id] = item.start + item.num_rows
        return claims

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
        for item in launch.patch.plan.items:
            held = self._held.get(item.request.id)
            own: tuple[list[int], list[int]] = [], []
            tree: tuple[list[int], list[int]] = [], []
            goes_on = held is not None and held.end is None
            try:
                if held is None:
                    raise LookupError(f"nobody entered request {item.request.id}")
                if goes_on:
                    own, tree = self._advance(held, item)
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
        if len(held.rows) > 1 and _feeds_draft(item):
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
