"""ResidentEngine: a target that keeps running requests on its device, and its patches."""

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
    """A request that the device is to hold from now on, in place of what it held under its id.

    request: its id, sampling options, seed, ends and lengths. tokens: prompt and output so far, the
    rows of chunks to come among them. committed: rows that are valid in the target's cache.
    drafted, absent: of each draft cache, see `DraftCache`.
    """

    request: Request
    tokens: Sequence[int]
    committed: int
    drafted: Sequence[int]
    absent: Sequence[int]


@dataclass(frozen=True, slots=True)
class Patch:
    """What a launch tells the device; all else it knows by itself.

    plan: whose rows it feeds, and how many nodes each may have. Of a request that generates,
    ``start`` is the least that it may be. The blocks are those of ``tables``.
    removed: ids that it may forget; unknown ones are ignored.
    entered: before they are fed for the first time.
    tables: by id, the blocks in the target's cache and in each draft's, int32 [n], where they are
    others than it was told before.
    """

    plan: StepPlan
    removed: Sequence[int]
    entered: Sequence[Entered]
    tables: Mapping[int, tuple[Tensor, ...]]


class ResidentEngine(Protocol):
    """A target, and what drafts for it, that advance by themselves: lengths, newest tokens, trees,
    sampling columns, ends and block tables are kept on the device.

    Launches run in their order. Each drafts, verifies, accepts and moves accepted rows behind each
    other in the target's cache; a request whose text has ended by its tokens emits nothing.
    """

    def launch(self, patch: Patch) -> Any:
        """Start a step, and return at once what `collect` takes. If it raises, nothing was started;
        it may have applied the patch, whose requests will be removed."""
        ...

    def collect(self, handle: Any) -> StepResult:
        """Wait for a launched step, the oldest: a value an item of its plan, and the drafts that
        were verified. What it raises, nothing of the step runs any more."""
        ...


class ResidentSteps:
    """The steps of a resident engine: which it can take, and with which patches.

    A step *needs the host* if drafts are made there, or something of a request: its logits are
    changed by processors, or it asks for log probabilities. Such steps run one by one.

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
        """Whether the next step needs the host, of what runs already."""
        self._drafts_on_host = self._drafter.needs_host()
        return self._drafts_on_host or bool(self._host_bound)

    def admit(self, plan: StepPlan, in_flight: bool) -> StepPlan:
        """The step, without newcomers that need the host if others are ``in_flight``: they have
        their blocks, and begin when these are collected."""
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
        """The request ended or lost its blocks; unknown ids are ignored."""
        self._host_bound.discard(request_id)
        self._drop(request_id)

    def step_on_host(self, plan: StepPlan) -> None:
        """The step is taken elsewhere: what the device holds of its requests counts no more."""
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
    """What counts of a collected step: without requests whose text has ended since it was launched,
    by a stop string say, and behind the tokens that each has by now."""
    kept = [i for i, item in enumerate(plan.items) if not item.request.is_finished]
    items = [
        replace(item, start=len(item.request.tokens) - 1) if item.is_generation else item
        for item in (plan.items[i] for i in kept)
    ]
    plan = replace(plan.pick(kept), items=tuple(items))
    return plan, result if len(kept) == len(result.ends) else result.pick(kept)
