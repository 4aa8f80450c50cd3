"""ResidentSteps: which steps a resident engine takes, and their patches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import compress
from typing import Any

from torch import Tensor

from trtspec.executor.resident.engine import Entered, Patch, ResidentEngine
from trtspec.executor.schedule.resources import DraftCache
from trtspec.executor.schedule.scheduler import Scheduler
from trtspec.executor.step.drafter import Drafter
from trtspec.executor.step.request import Request
from trtspec.executor.step.step_plan import StepPlan
from trtspec.executor.step.step_result import StepResult
from trtspec.executor.step.verification import Verification


class ResidentSteps:
    """The steps of a resident engine: which ones it can take, and their patches.

    A step *needs the host* if drafts are made there, if a request's logits are changed by
    processors or its log probabilities are wanted, or if the device cannot hold it. Such steps run
    one by one.

    takes_next: whether the device takes the step that was admitted last.
    """

    def __init__(
        self,
        engine: ResidentEngine,
        scheduler: Scheduler,
        drafter: Drafter,
        caches: Sequence[DraftCache],
        needs_host: Callable[[Request], bool],
    ) -> None:
        self._engine = engine
        self._scheduler = scheduler
        self._drafter = drafter
        self._caches = caches
        self._needs_host = needs_host
        self.takes_next = True
        self._drafts_on_host = False
        self._host_bound: set[int] = set()  # running requests that need the host
        self._tables: dict[int, tuple[Tensor, ...]] = {}  # of what the device holds
        self._removed: set[int] = set()

    def next_needs_host(self) -> bool:
        """Whether the next step needs the host, judging by the running requests."""
        self._drafts_on_host = self._drafter.needs_host()
        return self._drafts_on_host or bool(self._host_bound)

    def admit(self, plan: StepPlan, in_flight: bool) -> StepPlan:
        """The step; if others are ``in_flight``, without new requests that need the host: they keep
        their blocks, and begin when those are collected."""
        bound = [self._is_bound(item.request) for item in plan.items]
        self._host_bound.update(item.request.id for item in compress(plan.items, bound))
        self.takes_next = in_flight or not (self._drafts_on_host or self._host_bound)
        if not (in_flight and any(bound)):
            return plan
        return plan.pick([i for i, is_bound in enumerate(bound) if not is_bound])

    def launch(self, plan: StepPlan) -> Verification:
        """Start the step."""
        patch = self._patch(plan)
        handle = self._engine.launch(patch)
        self._removed.clear()
        self._scheduler.launched(plan)
        return Verification(plan, lambda: self._collect(handle))

    def forget(self, request_id: int) -> None:
        """The request ended or was preempted; unknown ids are ignored."""
        self._host_bound.discard(request_id)
        self._drop(request_id)

    def step_on_host(self, plan: StepPlan) -> None:
        """The step runs elsewhere, so the device's state of its requests is outdated."""
        for item in plan.items:
            if item.request.id in self._tables:
                self._engine.leave(item.request, item.start)
                self._drop(item.request.id)

    def _is_bound(self, request: Request) -> bool:
        return self._needs_host(request) or not self._engine.holds(request)

    def _drop(self, request_id: int) -> None:
        if self._tables.pop(request_id, None) is not None:
            self._removed.add(request_id)

    def _collect(self, handle: Any) -> StepResult:
        try:
            return self._engine.collect(handle)
        finally:
            self._scheduler.collected()

    def _patch(self, plan: StepPlan) -> Patch:
        entered, tables = [], {}
        for item, blocks in zip(plan.items, plan.blocks, strict=True):
            request = item.request
            now = blocks, *(cache.block_table(request) for cache in self._caches)
            known = self._tables.get(request.id)
            if known is None:
                drafted = [cache.committed(request) for cache in self._caches]
                absent = [cache.absent(request) for cache in self._caches]
                entered.append(Entered(request, request.tokens[:], item.start, drafted, absent))
            if known is None or any(a is not b for a, b in zip(known, now, strict=True)):
                tables[request.id] = now
        self._tables |= tables
        return Patch(plan, sorted(self._removed), entered, tables)


def confirmed(plan: StepPlan, result: StepResult) -> tuple[StepPlan, StepResult]:
    """What counts of a collected step: without requests that have ended since it was launched, for
    example by a stop string, and starting from the tokens that each has now."""
    kept = [i for i, item in enumerate(plan.items) if not item.request.is_finished]
    items = [
        replace(item, start=len(item.request.tokens) - 1) if item.is_generation else item
        for item in (plan.items[i] for i in kept)
    ]
    plan = replace(plan.pick(kept), items=tuple(items))
    return plan, result if len(kept) == len(result.ends) else result.pick(kept)
