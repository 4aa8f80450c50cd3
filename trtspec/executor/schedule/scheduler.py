"""Scheduler: which rows of which requests the next step feeds, within the limits of rows and
blocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from trtspec.errors import ConfigError, RequestError
from trtspec.executor.engines.step_states import StepStates
from trtspec.executor.schedule.resources import ResourceManager
from trtspec.executor.step.drafter import DrafterNeeds
from trtspec.executor.step.request import Request
from trtspec.executor.step.step_plan import ScheduledRequest, StepPlan

Order = Callable[[Sequence[Request]], Sequence[Request]]
"""A policy: orders the waiting requests for admission."""


class OrderError(ConfigError):
    """A policy failed, or returned something other than the given requests."""


class Scheduler:
    """Continuous batching with chunked prefill and preemption, in C++, which the C++ runtime
    schedules by as well (cpp/include/trtspec/scheduler.hpp says why each pass is as it is).

    A step is decided in three passes.

    1. Every running request reserves ONE row: the root, or the next row of its prompt. If that
       fails, the latest to begin among the running ones is preempted (its blocks freed, its output
       kept, itself put at the front of the queue, to be recomputed), until it succeeds or the
       request is itself the latest: then it keeps its blocks and waits for a later step.
    2. What is left of the row budget and of the blocks goes, in the same order, to draft nodes and
       to longer prefill chunks. This pass shrinks what does not fit and never preempts.
    3. Waiting requests are admitted if their whole prompt fits beside what pass 1 will ask for in
       the next steps; nobody is admitted in a step in which somebody lacked blocks.

    Where the target keeps states, a chunk ends at the next border at which a snapshot may be made.

    While launches are in flight, rows are reserved for the most tokens that they may emit, and
    nobody is preempted: where that would be needed the plan is empty.

    Progress: every step feeds the first of the running requests at least one row, and if none runs,
    the first in the queue begins, so some request always goes on until it finishes. First come
    first served, it is the earliest unfinished one, so all finish. ``order`` changes whom pass 3
    admits, and nothing else: those that run keep their rows, and victims, the latest to begin, are
    ordered among those that wait. Then a request waits for as long as others are put before it: all
    finish if each has finitely many before it, as with priorities and ties in order of arrival
    while few of a higher one arrive. The first in the order is never passed by one that is smaller:
    where it does not fit, nobody is admitted.
    """

    def __init__(
        self,
        resources: ResourceManager,
        max_batch_size: int,
        max_num_tokens: int,
        max_seq_len: int,
        draft_reserve: DrafterNeeds,
        skips_drafts: Callable[[int], bool] | None = None,
        order: Order | None = None,
    ) -> None:
        """max_num_tokens: rows of a step over all requests, including draft nodes. skips_drafts:
        asked in every step in which generating requests may draft, with the number of all
        generating requests, whether none of them is to draft; by default all may. order: the
        scheduling policy, asked in every step in which several requests wait and fewer than
        max_batch_size run; by default first come, first served. ConfigError if max_num_tokens
        cannot hold one row for each of max_batch_size requests."""
        needs = draft_reserve
        limits = max_batch_size, max_num_tokens, max_seq_len
        slots = [cache.slots for cache in needs.caches]
        try:
            native: Any = torch.classes.trtspec.Scheduler(
                resources.native, *limits, needs.max_nodes, needs.max_depth, slots
            )
        except ValueError as error:
            raise ConfigError(str(error)) from None
        self.max_batch_size = max_batch_size
        self.max_num_tokens = max_num_tokens
        self.max_seq_len = max_seq_len
        self._resources = resources
        self._skips_drafts = skips_drafts
        self._order = order
        self._native = native
        self._reserve_rows, self._schedule = native.reserve_rows, native.schedule
        self._requests: dict[int, Request] = {}  # unfinished ones
        self._num_running = 0

    @property
    def num_running(self) -> int:
        return self._num_running

    @property
    def num_waiting(self) -> int:
        return len(self._requests) - self._num_running

    @property
    def has_work(self) -> bool:
        return bool(self._requests)

    @property
    def waiting(self) -> tuple[Request, ...]:
        """The requests without blocks, in order of admission."""
        return tuple(self._requests[request_id] for request_id in self._native.waiting())

    def check_fits(self, request: Request) -> None:
        """RequestError if the request could not run even alone: longer than max_seq_len, or, with
        its drafts, larger than one of the caches."""
        try:
            self._native.check_fits(request.tokens.address)
        except ValueError as error:
            raise RequestError(str(error)) from None

    def add(self, request: Request) -> None:
        """Queue a request behind all others; RequestError if it can never fit (`check_fits`)."""
        assert request.id not in self._requests, f"request {request.id} was added already"
        try:
            self._native.add(request.tokens.address)
        except ValueError as error:
            raise RequestError(str(error)) from None
        self._requests[request.id] = request

    def abort(self, request_id: int) -> Request | None:
        """Drop an unfinished request and free its blocks, with finish_reason "abort" unless it has
        one; None if the id is unknown or finished. If a step is under way, the request's rows of
        that step must not be committed."""
        request = self._requests.get(request_id)
        if request is not None:
            if request.finish_reason is None:
                request.finish_reason = "abort"
            self.finish(request)
        return request

    def finish(self, request: Request) -> None:
        """Forget a request whose text has ended, and free its blocks; if it is in flight, once its
        last launch is collected."""
        self._num_running -= self._native.finish(request.tokens.address)
        del self._requests[request.id]

    def launched(self, plan: StepPlan) -> None:
        """The last plan, or a part of it, is in flight: others may be planned before it is
        committed."""
        self._native.launched(plan.table)

    def collected(self) -> None:
        """The oldest launch has ended; call this before committing its result."""
        self._native.collected()

    def schedule(self) -> StepPlan:
        """Reserve and return the rows of the next step; empty only if there are no requests, or
        steps in flight must be collected first. All committed lengths must be those after the last
        step that is not in flight.

        Raises:
            OrderError: see there; nothing was reserved.
        """
        is_full = self._num_running >= self.max_batch_size  # then nobody is admitted
        if self._order is not None and not is_full:
            self._put_in_order(self._order)
        drafts = True
        if self._skips_drafts is not None:
            generating = self._reserve_rows()
            drafts = not (generating and self._skips_drafts(generating))
        planned = self._schedule(drafts)
        ids, table, num_begun, victims, running, drafted, absent, tables, states = planned
        requests = self._requests
        _, starts, rows, generates, nodes, samples = table.tolist()
        items = tuple(
            map(
                ScheduledRequest,
                [requests[i] for i in ids],
                starts,
                rows,
                map(bool, generates),
                nodes,
                map(bool, samples),
            )
        )
        self._num_running = running
        self._resources.know(ids, drafted, absent, tables[len(ids) :])
        preempted = tuple(requests[i] for i in victims)
        admitted = _first_time(items[len(items) - num_begun :])
        blocks = tuple(tables[: len(ids)])
        waiting = self.num_waiting
        own = None if states is None else StepStates._make(states)
        queue = {"num_waiting": waiting, "states": own, "_table": table}
        return StepPlan(items, blocks, preempted, admitted, **queue)

    def _put_in_order(self, order: Order) -> None:
        waiting = self.waiting
        if len(waiting) < 2:
            return
        asked = f"{getattr(order, '__qualname__', repr(order)):.80} over {len(waiting)} requests"
        rule = "a scheduling policy returns the requests that it is given, each once"
        try:
            ordered = list(order(waiting))
        except Exception as error:
            raise OrderError(f"{asked} failed: {error!r}; {rule}") from error
        if sorted(map(id, ordered)) != sorted(map(id, waiting)):
            raise OrderError(f"{asked} returned {len(ordered)} that are not the same; {rule}")
        self._native.reorder([request.tokens.address for request in ordered])


def _first_time(begun: Sequence[ScheduledRequest]) -> tuple[ScheduledRequest, ...]:
    """Those that begin for the first time, now."""
    first = tuple(item for item in begun if item.request.scheduled_time is None)
    now = time.monotonic() if first else 0.0
    for item in first:
        item.request.scheduled_time = now
        item.request.num_cached_tokens = item.start
    return first
