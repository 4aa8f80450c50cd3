"""ResourceManager and Scheduler in plain Python: what those of C++ must do alike."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from trtspec.executor.step.drafter import DrafterNeeds
from trtspec.executor.step.request import Request
from trtspec.executor.step.step_plan import ScheduledRequest, StepPlan
from trtspec.executor.step.step_result import StepResult


def useful_nodes(needs: DrafterNeeds, request: Request) -> int:
    """Upper bound of the nodes of use to a request."""
    depth = request.draft_depth
    if depth <= 0:
        return 0
    return min(needs.max_nodes, depth) if needs.max_nodes == needs.max_depth else needs.max_nodes


class PlainResourceManager:
    """See `trtspec.executor.schedule.resources.ResourceManager`. Tests that need a broken
    one change it."""

    def __init__(
        self,
        target: Any,
        drafts: Sequence[Any] = (),
        from_tokens: Sequence[bool] | None = None,
    ) -> None:
        """from_tokens: of each draft, whether rows that it lacks can be made of tokens alone, at
        any time; left out, those of none can."""
        self.target = target
        self.drafts = tuple(drafts)
        flags = from_tokens or [False] * len(self.drafts)
        pairs = zip(self.drafts, flags, strict=True)
        self._followers = tuple(draft for draft, alone in pairs if alone)
        self._largest_block = max(manager.block_size for manager in self.all)

    @property
    def all(self) -> tuple[Any, ...]:
        """The target's cache, then the drafts'."""
        return self.target, *self.drafts

    def begin(self, request: Request) -> int:
        """Start a request on the prefix that the target holds; returns its length. Drafts that can
        catch up begin on what they hold of it; to the others what they lack of it is absent."""
        tokens = request.tokens
        num_cached = self.target.match(tokens)
        self.target.begin(request.id, tokens, num_cached)
        for manager in self.drafts:
            if manager in self._followers:
                held = min(num_cached, manager.match(tokens)) if num_cached else 0
                manager.begin(request.id, tokens, held - held % manager.block_size)
                if manager.window and manager.room(request.id) <= num_cached:
                    # It may be smaller than a text, and have no room to catch up.
                    manager.free(request.id)
                    manager.begin_behind(request.id, tokens, num_cached)
            else:
                manager.begin_behind(request.id, tokens, num_cached)
        return num_cached

    def reserve(
        self, request: Request, target_tokens: int, draft_tokens: Sequence[int] = ()
    ) -> bool:
        """Room for that many rows in all, in every cache; False and nothing changed otherwise.
        A length that is already covered costs nothing, so no draft_tokens ask for no more."""
        # The drafts are asked first what they could give, rather than rolling back after a refusal:
        # a rollback could not bring back the cached blocks evicted for it.
        asked = [
            (draft, tokens - draft.absent(request.id))
            for draft, tokens in zip(self.drafts, draft_tokens, strict=bool(draft_tokens))
        ]
        for draft, rows in asked:
            if not draft.covers(request.id, rows) and rows > draft.room(request.id):
                return False
        if not self.target.reserve(request.id, target_tokens):
            return False
        for draft, rows in asked:
            reserved = draft.reserve(request.id, rows)
            assert reserved, "a draft cache refused what it had room for"
        return True

    def extend(self, plan: StepPlan, result: StepResult) -> list[Tensor]:
        """Append what every request emits; rows to be moved, from where to where."""
        moves: list[tuple[int, int]] = []
        for i, item in enumerate(plan.items):
            id, root = item.request.id, item.start + item.num_rows - 1
            item.request.tokens.extend(result.emitted(i))
            rows = result.accepted_rows(i)
            places = [[root + row for row in rows], [root + place for place in range(len(rows))]]
            slots = (self.target.slots(id, positions).tolist() for positions in places)
            moves += [(source, to) for source, to in zip(*slots, strict=True) if source != to]
        return [torch.tensor(column) for column in zip(*moves, strict=True)]

    def commit(self, plan: StepPlan, result: StepResult, drafted: Sequence[Sequence[int]]) -> None:
        for item, kept, lengths in zip(plan.items, result.num_kept(plan), drafted, strict=True):
            request, committed = item.request, item.start + kept
            assert all(n <= committed for n in lengths), "a draft cannot be ahead of the target"
            self.target.commit(request.id, request.tokens, committed)
            for draft, length in zip(self.drafts, lengths, strict=True):
                draft.commit(request.id, request.tokens, length - draft.absent(request.id))

    def free(self, request: Request) -> None:
        """Return all blocks of a request."""
        for manager in self.all:
            manager.free(request.id)

    def pledge(self, num_tokens: int) -> int:
        """Rows of the blocks that all requests share which a running one will soon ask for, if so
        much of its prompt is not fed yet: those, and a block to go on."""
        return num_tokens + self._largest_block if self.target.is_pooled else 0

    def room(self, request: Request) -> int:
        """Most rows that the request could hold now in every cache."""
        rooms = (draft.room(request.id) + draft.absent(request.id) for draft in self.drafts)
        return min(self.target.room(request.id), *rooms, 1 << 62)

    def target_room(self, request: Request) -> int:
        """Most rows that the request could hold now in the target's cache."""
        return self.target.room(request.id)

    def target_committed(self, request: Request) -> int:
        return self.target.committed(request.id)

    def target_block_table(self, request: Request) -> Tensor:
        """The target's blocks in order of position: int32 [n], not to be written to."""
        return self.target.block_table(request.id)

    def check_invariants(self) -> None:
        """RuntimeError unless every cache's books balance, AssertionError unless they agree; for
        tests and debugging."""
        for manager in self.all:
            manager.check_invariants()
        target = self.target.committed_lengths()
        for draft in self.drafts:
            lengths = draft.committed_lengths()
            assert target.keys() == lengths.keys(), "the caches hold different requests"
            for request_id, committed in lengths.items():
                length = committed + draft.absent(request_id)
                assert length <= target[request_id], f"draft of {request_id} ahead of the target"


class PlainScheduler:
    """See `trtspec.executor.schedule.scheduler.Scheduler`; every request is to fit."""

    def __init__(
        self,
        resources: PlainResourceManager,
        max_batch_size: int,
        max_num_tokens: int,
        max_seq_len: int,
        draft_reserve: DrafterNeeds,
        skips_drafts: Callable[[int], bool] | None = None,
    ) -> None:
        self.max_batch_size = max_batch_size
        self.max_num_tokens = max_num_tokens
        self.max_seq_len = max_seq_len
        self._resources = resources
        self._needs = draft_reserve
        self._skips_drafts = skips_drafts
        self._running: list[Request] = []  # in order of arrival
        self._waiting: deque[Request] = deque()  # in order of arrival, all after the running ones
        self._requests: dict[int, Request] = {}

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def waiting(self) -> tuple[Request, ...]:
        return tuple(self._waiting)

    @property
    def has_work(self) -> bool:
        return bool(self._requests)

    def add(self, request: Request) -> None:
        assert request.id not in self._requests, f"request {request.id} was added already"
        self._requests[request.id] = request
        self._waiting.append(request)

    def abort(self, request_id: int) -> Request | None:
        """Drop an unfinished request and free its blocks, its finish_reason "abort" unless it has
        one; None if the id is unknown or finished. If a step is under way, its rows of that step
        must not be committed any more."""
        request = self._requests.get(request_id)
        if request is not None:
            if request.finish_reason is None:
                request.finish_reason = "abort"
            self.finish(request)
        return request

    def finish(self, request: Request) -> None:
        """Forget a request whose text has ended, and free its blocks."""
        del self._requests[request.id]
        if request in self._running:
            self._running.remove(request)
            self._resources.free(request)
        else:
            self._waiting.remove(request)

    def schedule(self) -> StepPlan:
        """Reserve and return the rows of the next step; empty only if there is no request. All
        committed lengths must be those after the step before."""
        preempted: list[Request] = []
        ready = self._reserve_one_row_each(preempted)
        spare = self.max_num_tokens - len(ready)
        may_admit = not preempted and len(ready) == len(self._running) < self.max_batch_size
        # One row is kept for the queue, or drafts that fill the budget would lock newcomers out.
        # There is one: the batch is not full, and max_num_tokens >= max_batch_size.
        kept = 1 if may_admit and self._waiting else 0
        spare -= kept
        items: list[ScheduledRequest] = []
        drafts = True
        if self._skips_drafts is not None:
            generate = [r for r, start in ready if start == len(r.tokens) - 1]
            asks = any(request.may_draft for request in generate)
            drafts = not (asks and self._skips_drafts(len(generate)))
        for request, start in ready:
            item = self._extend(request, start, spare, drafts)
            spare -= item.num_rows + item.max_nodes - 1
            items.append(item)
        num_running = len(items)
        if kept:
            self._admit(items, spare + kept)
        assert items or not self._requests, "no progress: nothing could be scheduled"
        admitted = [i for i in items[num_running:] if i.request.scheduled_time is None]
        now = time.monotonic()
        for item in admitted:
            item.request.scheduled_time = now
        blocks = tuple(self._resources.target_block_table(item.request) for item in items)
        return StepPlan(
            tuple(items), blocks, tuple(preempted), tuple(admitted), num_waiting=len(self._waiting)
        )

    def _reserve_one_row_each(self, preempted: list[Request]) -> list[tuple[Request, int]]:
        """Pass 1: the requests that have their row, with their committed lengths."""
        resources, running = self._resources, self._running
        ready: list[tuple[Request, int]] = []
        index = 0
        while index < len(running):
            request = running[index]
            start = resources.target_committed(request)
            # A generating request can do without drafts, hence without the draft caches.
            drafts = () if start == len(request.tokens) - 1 else self._drafts(request, start + 1)
            while not resources.reserve(request, start + 1, drafts):
                if running[-1] is request:
                    break  # it waits
                preempted.append(self._preempt_latest())
            else:
                ready.append((request, start))
            index += 1
        return ready

    def _extend(
        self, request: Request, start: int, spare: int, drafts: bool = True
    ) -> ScheduledRequest:
        """Pass 2: draft nodes (if `drafts`), or a longer chunk, for a request that has one row;
        `spare` more rows are left."""
        resources = self._resources
        total = len(request.tokens)
        if start == total - 1:
            if not drafts:
                return ScheduledRequest(request, start, 1, True, 0, True)
            nodes = min(useful_nodes(self._needs, request), spare)
            slots = [total + cache.slots for cache in self._needs.caches]
            if nodes > 0 and not resources.reserve(request, total + nodes, slots):
                nodes = min(nodes, resources.target_room(request) - total)
                if nodes > 0 and not resources.reserve(request, total + nodes, slots):
                    nodes = 0  # no room for a rollout in some draft cache
            return ScheduledRequest(request, start, 1, True, nodes, True)
        rows = min(total - start, spare + 1, self._room(request) - start)
        reserved = resources.reserve(request, start + rows, self._drafts(request, start + rows))
        assert reserved, "a cache refused what it had room for"
        return ScheduledRequest(request, start, rows, False, 0, start + rows == total)

    def _admit(self, items: list[ScheduledRequest], spare: int) -> None:
        """Pass 3: start waiting requests, appending to `items`."""
        resources, running = self._resources, self._running
        # Rows that the running requests will soon ask for: the rest of their prompts, and a block
        # each to go on. Without it a newcomer would compute its prompt only to be the next victim.
        pledged = sum(
            resources.pledge(len(item.request.tokens) - item.start - item.num_rows)
            for item in items
        )
        while self._waiting and spare > 0 and len(running) < self.max_batch_size:
            request = self._waiting[0]
            start = resources.begin(request)
            if running and self._room(request) < len(request.tokens) + pledged:
                resources.free(request)
                return
            self._waiting.popleft()
            running.append(request)
            reserved = resources.reserve(request, start + 1, self._drafts(request, start + 1))
            assert reserved, f"request {request.id} does not fit alone"
            item = self._extend(request, start, spare - 1)
            items.append(item)
            spare -= item.num_rows + item.max_nodes
            pledged += resources.pledge(len(request.tokens) - start - item.num_rows)

    def _drafts(self, request: Request, num_tokens: int) -> tuple[int, ...]:
        """That length in each draft cache which the request uses."""
        return (num_tokens,) * (len(self._needs.caches) if request.may_draft else 0)

    def _room(self, request: Request) -> int:
        rooms = self._resources
        return rooms.room(request) if request.may_draft else rooms.target_room(request)

    def _preempt_latest(self) -> Request:
        victim = self._running.pop()
        self._resources.free(victim)
        self._waiting.appendleft(victim)
        return victim
