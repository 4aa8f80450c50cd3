"""ReadsPart: a drafter that reads some of the states that a target captures for several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trtspec.executor.drafter import Accepted, Drafter
from trtspec.executor.forwarding_drafter import ForwardingDrafter
from trtspec.executor.step_plan import StepPlan


class ReadsPart(ForwardingDrafter):
    """Hands its drafter a view of the columns that it reads; nothing is copied."""

    def __init__(self, drafter: Drafter, columns: slice) -> None:
        super().__init__(drafter)
        self._columns = columns

    def on_accepted(
        self, batch: StepPlan, accepted: Sequence[Accepted]
    ) -> Sequence[tuple[int, ...]]:
        return super().on_accepted(batch, [self._part(outcome) for outcome in accepted])

    def _part(self, outcome: Accepted) -> Accepted:
        assert outcome.hidden is not None, "the target hands out its states"
        return replace(outcome, hidden=outcome.hidden[:, self._columns])
