"""ReadsPart: a drafter that reads some of the hidden states that a target captures for several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trtspec.executor.step.drafter import Drafter
from trtspec.executor.step.forwarding_drafter import ForwardingDrafter
from trtspec.executor.step.step_plan import StepPlan
from trtspec.executor.step.step_result import StepResult


class ReadsPart(ForwardingDrafter):
    """Gives its drafter a view of the columns that it reads; nothing is copied."""

    def __init__(self, drafter: Drafter, columns: slice) -> None:
        super().__init__(drafter)
        self._columns = columns

    def on_accepted(self, batch: StepPlan, result: StepResult) -> Sequence[tuple[int, ...]]:
        assert result.hidden is not None, "the target hands out its states"
        part = replace(result, hidden=result.hidden[:, self._columns])
        return super().on_accepted(batch, part)
