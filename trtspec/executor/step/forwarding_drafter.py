"""ForwardingDrafter: forwards everything to another drafter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

from trtspec.executor.engines.counted_engine import CountedEngine
from trtspec.executor.step.device_rollout import DeviceRollout
from trtspec.executor.step.drafter import Drafter
from trtspec.executor.step.step_plan import StepPlan
from trtspec.executor.step.step_result import StepResult
from trtspec.ops.draft_batch import DraftBatch


class ForwardingDrafter(Drafter):
    """The base of drafters that change one thing about another drafter."""

    def __init__(self, drafter: Drafter) -> None:
        self.needs = drafter.needs
        self._drafter = drafter

    def profile(self, target: CountedEngine, max_requests: int, max_rows: int) -> None:
        self._drafter.profile(target, max_requests, max_rows)

    def skips_drafts(self, num_requests: int) -> bool:
        return self._drafter.skips_drafts(num_requests)

    def needs_host(self) -> bool:
        return self._drafter.needs_host()

    def device_rollout(self) -> DeviceRollout | None:
        return self._drafter.device_rollout()

    def reports(self) -> Sequence[Mapping[str, Any]]:
        return self._drafter.reports()

    def prepare_draft_tokens(self, batch: StepPlan) -> DraftBatch:
        return self._drafter.prepare_draft_tokens(batch)

    def on_accepted(self, batch: StepPlan, result: StepResult) -> Sequence[tuple[int, ...]]:
        return self._drafter.on_accepted(batch, result)

    def release(self, request_id: int) -> None:
        self._drafter.release(request_id)

    @property
    def live_requests(self) -> Set[int]:
        return self._drafter.live_requests
