"""ResidentEngine: a target that keeps running requests on its device, and the patches it gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any, Protocol

from torch import Tensor

from trtspec.executor.schedule.resources import DraftCache
from trtspec.executor.schedule.scheduler import Scheduler
from trtspec.executor.step.drafter import Drafter
from trtspec.executor.step.request import Request
from trtspec.executor.step.step_plan import StepPlan
from trtspec.executor.step.step_result import StepResult
from trtspec.executor.step.verification import Verification


@dataclass(frozen=True, slots=True)
class Entered:
    """A request that the device holds from now on, replacing whatever it held under its id.

    request: its id, sampling options, seed, ends and lengths. tokens: prompt and output so far,
    including prompt chunks to come. committed: valid rows in the target's cache. drafted, absent:
    for each draft cache, see `DraftCache`.
    """

    request: Request
    tokens: Sequence[int]
    committed: int
    drafted: Sequence[int]
    absent: Sequence[int]


@dataclass(frozen=True, slots=True)
class Patch:
    """What a launch tells the device; it knows everything else.

    plan: which rows to feed, and how many nodes each request may have. For a generating request
    ``start`` is its minimum, and blocks are those of ``tables``. removed: ids to forget; unknown
    ones are ignored. entered: requests, before they are fed for the first time. tables: by id, the
    block tables in the target's cache and in each draft's, int32 [n], where they have changed.
    """

    plan: StepPlan
    removed: Sequence[int]
    entered: Sequence[Entered]
    tables: Mapping[int, tuple[Tensor, ...]]


class ResidentEngine(Protocol):
    """A target and its drafts that advance by themselves: lengths, newest tokens, trees, sampling
    columns, ends and block tables are kept on the device.

    Launches run in order. Each drafts, verifies, accepts and compacts accepted rows in the target's
    cache; a request whose text has ended by its tokens emits nothing.
    """

    def launch(self, patch: Patch) -> Any:
        """Start a step; returns immediately with a handle for `collect`. If it raises, nothing was
        started, but the patch may have been applied; its requests will be removed."""
        ...

    def collect(self, handle: Any) -> StepResult:
        """Wait for the oldest launched step: a value per item of its plan, and the drafts that were
        verified. If it raises, nothing of the step is running any more."""
        ...


class ResidentSteps:
    """The steps of a resident engine: which ones it can take, and their patches.

    A step *needs the host* if drafts are made there, or if a request's logits are changed by
    processors or its log probabilities are wanted. Such steps run one by one.

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
        bound = [self._needs_host(item.request) for item in plan.items]
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
            self._drop(item.request.id)

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
