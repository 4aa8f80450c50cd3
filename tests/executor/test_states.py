"""States of requests under random schedules: arrivals, aborts, preemptions, accept lengths and
evictions, and a shadow that computes each committed state from the request's tokens."""

from __future__ import annotations

from collections import Counter

import pytest

from trtspec.executor.engines.step_states import StateMoves
from trtspec.executor.step.step_plan import StepPlan
from trtspec.executor.step.step_result import StepResult

from .state_schedules import StateSimulation, state_world


def run(seeds: range, simulation: type[StateSimulation] = StateSimulation) -> Counter[str]:
    events: Counter[str] = Counter()
    for seed in seeds:
        try:
            events += simulation(state_world(seed)).run()
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    return events


def test_every_committed_state_is_that_of_its_tokens() -> None:
    events = run(range(500))
    for event in (
        "restored", "snapshot", "split", "preempted", "aborted", "chunk", "reused", "moved",
    ):  # fmt: skip
        assert events[event] > 20, (event, events)


@pytest.mark.matrix
def test_every_committed_state_is_that_of_its_tokens_in_many_worlds() -> None:
    run(range(1000, 6000))


class RowBefore(StateSimulation):
    """Takes in another node than the accepted one."""

    def moves(self, batch: StepPlan, result: StepResult) -> StateMoves:
        right = super().moves(batch, result)
        return right._replace(before=right.before._replace(rows=right.before.rows - 1))


class KeepsRejected(StateSimulation):
    """Takes in the node behind the last accepted one."""

    def moves(self, batch: StepPlan, result: StepResult) -> StateMoves:
        for i, nodes in enumerate(self.num_nodes):
            accepted = result.accepted_rows(i)
            if accepted and accepted[-1] < nodes:
                longer = [*accepted, accepted[-1] + 1]
                first, end = result.start[i : i + 2]
                rows = [*result.rows[:first], *longer, *result.rows[end:]]
                start = [s + (j > i) for j, s in enumerate(result.start)]
                wrong = StepResult(start, [0] * len(rows), rows, result.ends, drafts=result.drafts)
                return super().moves(batch, wrong)
        return super().moves(batch, result)


class SnapshotTooLate(StateSimulation):
    """A snapshot has taken in a token more than its prefix has."""

    def copy(self, source: list[int], wanted: list[int]) -> None:
        super().copy(source, wanted)
        for slot in wanted:
            if slot >= self.sizes.num_states:
                self.fold(slot, [0], self.states[slot])


@pytest.mark.parametrize("broken", [RowBefore, KeepsRejected, SnapshotTooLate])
def test_a_wrong_state_is_noticed(broken: type[StateSimulation]) -> None:
    with pytest.raises(AssertionError):
        run(range(200), broken)
