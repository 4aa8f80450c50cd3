"""When the executor launches and collects steps, on a simulated clock."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

import torch
from torch import Tensor

from trtspec.backends.packing import RowBatch
from trtspec.config.kv import CacheLayout
from trtspec.config.sampling import SamplingParams
from trtspec.executor.py_executor import PyExecutor
from trtspec.executor.resident.engine import Patch
from trtspec.executor.schedule.kv_cache import KVCacheManager
from trtspec.executor.schedule.resources import ResourceManager
from trtspec.executor.schedule.scheduler import Scheduler
from trtspec.executor.step.drafter import Drafter, DrafterNeeds
from trtspec.executor.step.request import Request
from trtspec.executor.step.step_plan import StepPlan
from trtspec.executor.step.step_result import StepResult
from trtspec.executor.text.stopping import StopChecker
from trtspec.ops.draft_batch import DraftBatch

LAUNCH, RUN, COLLECT = 1.0, 3.0, 1.0
"""How long the parts of a step take, in no particular unit."""


@dataclass(frozen=True)
class Span:
    """lane: 'launch', 'run' or 'collect'. step: counted from 0."""

    lane: str
    step: int
    start: float
    end: float


@dataclass
class Clock:
    """The time on the host, and when the device will be free."""

    now: float = 0.0
    free: float = 0.0
    spans: list[Span] = field(default_factory=list)

    def launch(self, step: int) -> float:
        """Launch a step, which runs as soon as the device is free; returns when it will end."""
        self._host("launch", step, LAUNCH)
        start = max(self.now, self.free)
        self.free = start + RUN
        self.spans.append(Span("run", step, start, self.free))
        return self.free

    def collect(self, step: int) -> None:
        self._host("collect", step, COLLECT)

    def _host(self, lane: str, step: int, length: float) -> None:
        self.spans.append(Span(lane, step, self.now, self.now + length))
        self.now += length


class Device:
    """A fake target that emits token 0, both a `ModelEngine` and a `ResidentEngine`."""

    verifies = False
    vocab_size = 1
    layout = CacheLayout(4, 8, 1)

    def __init__(self, clock: Clock, num_steps: int) -> None:
        self._clock = clock
        self._num_steps = num_steps
        self._num_launched = 0
        self._num_collected = 0

    def forward(self, packed: RowBatch) -> tuple[Tensor, None]:
        self._clock.now = self._begin()
        return torch.zeros(len(packed.logits_rows), 1), None

    def holds(self, request: Request) -> bool:
        return True

    def leave(self, request: Request, committed: int) -> None:
        pass

    def launch(self, patch: Patch) -> tuple[Patch, float]:
        return patch, self._begin()

    def collect(self, handle: tuple[Patch, float]) -> StepResult:
        patch, end = handle
        self._clock.now = max(self._clock.now, end)
        self._num_collected += 1
        result = StepResult.of([[0] for _ in patch.plan.items])
        if self._num_collected == self._num_steps:
            result.ends = ["length"] * len(result.ends)
        return result

    def _begin(self) -> float:
        self._num_launched += 1
        return self._clock.launch(self._num_launched - 1)


class DeviceDrafts(Drafter):
    """Drafts nothing."""

    live_requests: Set[int] = frozenset()
    needs = DrafterNeeds()

    def needs_host(self) -> bool:
        return False

    def prepare_draft_tokens(self, batch: StepPlan) -> DraftBatch:
        return DraftBatch.none(len(batch.items))

    def on_accepted(self, batch: StepPlan, result: StepResult) -> list[tuple[int, ...]]:
        return [()] * len(batch.items)

    def release(self, request_id: int) -> None:
        pass


def record_lag(lag: int, num_steps: int) -> list[Span]:
    """The spans of a run of ``num_steps`` steps."""
    clock = Clock()
    device = Device(clock, num_steps)
    resources = ResourceManager(KVCacheManager(8, device.layout.tokens_per_block))
    drafter = DeviceDrafts()
    scheduler = Scheduler(resources, 1, 32, 32, drafter.needs)
    executor = PyExecutor(
        device,  # type: ignore[arg-type]
        resources,
        scheduler,
        drafter,
        resident=device,
        lag=lag,
    )
    params = SamplingParams(max_tokens=num_steps, temperature=0.0, detokenize=False)
    executor.add(Request.create(0, [0], params, 0, 32), StopChecker(params, ()))
    num_collected = 0
    while executor.has_work:
        if executor.step():
            clock.collect(num_collected)
            num_collected += 1
    return clock.spans
