"""ReadsPart: a drafter that reads some of the states that a target captures for several."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from trtspec.executor.drafter import Accepted, Drafter, DrafterNeeds
from trtspec.executor.step_plan import StepPlan


class ReadsPart:
    """Hands its drafter a view of the columns that it reads; nothing is copied."""

    def __init__(self, drafter: Drafter, columns: slice) -> None:
        self._drafter = drafter
        self._columns = columns

    @property
    def needs(self) -> DrafterNeeds:
        return self._drafter.needs

    def skips_drafts(self, num_requests: int) -> bool:
        return self._drafter.skips_drafts(num_requests)

    def prepare_draft_tokens(self, batch: StepPlan) -> None:
        self._drafter.prepare_draft_tokens(batch)

    def on_accepted(
        self, batch: StepPlan, accepted: Sequence[Accepted]
    ) -> Sequence[tuple[int, ...]]:
        return self._drafter.on_accepted(batch, [self._part(outcome) for outcome in accepted])

    def release(self, request_id: int) -> None:
        self._drafter.release(request_id)

    @property
    def live_requests(self) -> Set[int]:
        return self._drafter.live_requests

    def _part(self, outcome: Accepted) -> Accepted:
        assert outcome.hidden is not None, "the target hands out its states"
        return replace(outcome, hidden=outcome.hidden[:, self._columns])
