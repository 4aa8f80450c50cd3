"""A step over requests by hand, as far as texts and caches are concerned."""

from __future__ import annotations

from collections.abc import Sequence

from trtspec.executor.schedule.resources import ResourceManager
from trtspec.executor.step.request import Request
from trtspec.executor.step.step_plan import ScheduledRequest, StepPlan
from trtspec.executor.step.step_result import StepResult


def commit_rows(
    resources: ResourceManager,
    requests: Sequence[Request],
    target: Sequence[int],
    drafts: Sequence[Sequence[int]] | None = None,
) -> None:
    """Rows of these requests, which emit nothing, are valid up to there in the target's cache and
    in the drafts'."""
    items = []
    for request, length in zip(requests, target, strict=True):
        start = resources.target_committed(request)
        items.append(ScheduledRequest(request, start, length - start, False, 0, False))
    nothing = StepResult.of([()] * len(items))
    resources.commit(
        StepPlan(tuple(items)), nothing, [()] * len(items) if drafts is None else drafts
    )
