"""Scheduler: which rows of which requests the next step feeds, within rows and blocks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from trtspec.errors import ConfigError, RequestError
from trtspec.executor.drafter import DrafterNeeds
from trtspec.executor.request import Request
from trtspec.executor.resources import ResourceManager
from trtspec.executor.step_plan import ScheduledRequest, StepPlan
from trtspec.ops.tree import TokenTree


class Scheduler:
    """Continuous batching, first come first served, with chunked prefill and preemption.

    A step is decided in three passes.

    1. Every running request reserves ONE row: the root, or the next row of its prompt. If that
       fails, the latest arrival among the running ones is preempted (its blocks freed, its output
       kept, itself put at the front of the queue, to be recomputed), until it succeeds or the
       request is itself the latest: then it keeps its blocks and waits for a later step.
    2. What is left of the row budget and of the blocks goes, in order of arrival, to draft nodes
       and to longer prefill chunks. This pass shrinks what does not fit and never preempts: a
       request without drafts loses a few tokens of this step, while a victim loses its whole
       context and must compute it again. (Hence the mandatory rows of ALL come before the drafts
       of the first.)
    3. Waiting requests are admitted if their whole prompt fits beside what pass 1 will ask for in
       the next steps; nobody is admitted in a step in which somebody lacked blocks.

    Progress: the running requests are always the earliest unfinished ones, since admission is in
    order of arrival and victims are the latest. So the earliest unfinished request E is either
    running, or nothing runs. If E runs, it is nobody's victim, and pass 1 cannot fail for it: at
    worst all others are preempted, and then every block is E's, free or evictable, and E fits
    alone by `check_fits`. If nothing runs, E is admitted for the same reason. Therefore every step
    feeds E at least one row; its prompt is finite and so is its output, so E finishes, and the next
    request takes its place.
    """

    def __init__(
        self,
        resources: ResourceManager,
        max_batch_size: int,
        max_num_tokens: int,
        max_seq_len: int,
        draft_reserve: DrafterNeeds,
        skips_drafts: Callable[[int], bool] | None = None,
    ) -> None:
        """max_num_tokens: rows of a step over all requests, draft nodes included. skips_drafts:
        asked in every step, with the number of requests that generate, whether none of them is to
        draft; left out, all may. ConfigError if max_num_tokens cannot hold one row of each of
        max_batch_size requests."""
        if max_batch_size < 1:
            raise ConfigError(f"max_batch_size={max_batch_size} must be at least 1")
        if max_num_tokens < max_batch_size:
            raise ConfigError(
                f"max_num_tokens={max_num_tokens} must be at least max_batch_size="
                f"{max_batch_size}, so that every request of a full batch gets a row; raise the "
                f"former or lower the latter"
            )
        if len(draft_reserve.caches) != len(resources.drafts):
            raise ConfigError(
                f"the drafter needs {len(draft_reserve.caches)} draft KV caches, but there are "
                f"{len(resources.drafts)}"
            )
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
    def has_work(self) -> bool:
        return bool(self._requests)

    def check_fits(self, request: Request) -> None:
        """RequestError if the request could not run even alone: longer than max_seq_len, or with
        its drafts larger than one of the caches."""
        total = request.num_prompt_tokens + request.max_output_tokens
        parts = (
            f"{request.num_prompt_tokens} prompt tokens + {request.max_output_tokens} output tokens"
        )
        if request.max_output_tokens < 1 or total > self.max_seq_len:
            raise RequestError(
                f"{parts} do not fit max_seq_len={self.max_seq_len}, or leave no output; shorten "
                f"the prompt or lower max_tokens"
            )
        needs = self._needs
        caches = [("target", self._resources.target, needs.max_nodes, "draft nodes")]
        for i, (draft, asked) in enumerate(zip(self._resources.drafts, needs.caches, strict=True)):
            caches.append((f"draft {i + 1}" if i else "draft", draft, asked.slots, "draft slots"))
        step = self.max_num_tokens
        held = [cache.rows_held(total, step) + extra for _, cache, extra, _ in caches]
        spare = [entry[1].capacity - rows for entry, rows in zip(caches, held, strict=True)]
        worst = spare.index(min(spare))
        name, cache, extra, noun = caches[worst]
        if spare[worst] < 0:
            at_once = "" if held[worst] == total + extra else f", {held[worst]} of them at once"
            raise RequestError(
                f"{parts} + {extra} {noun} = {total + extra} tokens{at_once}, but the {name} KV "
                f"cache holds {cache.capacity} ({cache.num_blocks} blocks of {cache.block_size}); "
                f"lower max_tokens, shorten the prompt or enlarge the KV cache"
            )

    def add(self, request: Request) -> None:
        """Queue a request behind all others; RequestError if it can never fit (`check_fits`)."""
        assert request.id not in self._requests, f"request {request.id} was added already"
        self.check_fits(request)
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
        request.draft = TokenTree.empty()
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
            generating = sum(start == len(request.tokens) - 1 for request, start in ready)
            drafts = not (generating and self._skips_drafts(generating))
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
            drafts = () if start == len(request.tokens) - 1 else self._in_each_draft(start + 1)
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
            nodes = min(self._needs.useful_nodes(request.remaining_tokens), spare)
            slots = [total + cache.slots for cache in self._needs.caches]
            if nodes > 0 and not resources.reserve(request, total + nodes, slots):
                nodes = min(nodes, resources.target_room(request) - total)
                if nodes > 0 and not resources.reserve(request, total + nodes, slots):
                    nodes = 0  # no room for a rollout in some draft cache
            return ScheduledRequest(request, start, 1, True, nodes, True)
        rows = min(total - start, spare + 1, resources.room(request) - start)
        reserved = resources.reserve(request, start + rows, self._in_each_draft(start + rows))
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
            if running and resources.room(request) < len(request.tokens) + pledged:
                resources.free(request)
                return
            self._waiting.popleft()
            running.append(request)
            reserved = resources.reserve(request, start + 1, self._in_each_draft(start + 1))
            assert reserved, f"request {request.id} does not fit alone"
            item = self._extend(request, start, spare - 1)
            items.append(item)
            spare -= item.num_rows + item.max_nodes
            pledged += resources.pledge(len(request.tokens) - start - item.num_rows)

    def _in_each_draft(self, num_tokens: int) -> tuple[int, ...]:
        return (num_tokens,) * len(self._needs.caches)

    def _preempt_latest(self) -> Request:
        victim = self._running.pop()
        self._resources.free(victim)
        victim.draft = TokenTree.empty()
        self._waiting.appendleft(victim)
        return victim
