"""States of requests under random schedules: arrivals, aborts, preemptions, accept lengths and
evictions, and a shadow that computes each committed state from the request's tokens."""

from __future__ import annotations

from collections import Counter

import pytest

from trtspec.executor.engines.step_states import StateMoves
from trtspec.executor.schedule.resources import DraftCache
from trtspec.executor.step.request import Request
from trtspec.executor.step.step_plan import ScheduledRequest, StepPlan
from trtspec.executor.step.step_result import StepResult

from .state_schedules import REJECTED, StateSimulation, state_world


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
        "draft restored", "draft snapshot", "draft cut",
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


class DraftPassesBorders(StateSimulation):
    """A draft's call goes on behind a row where its state was to be copied."""

    def ends(self, books: DraftCache, request: Request, start: int, end: int) -> list[int]:
        return super().ends(books, request, start, end)[-1:]


class DraftTakesGuesses(StateSimulation):
    """Its state takes in a row of a rollout."""

    def run_drafter(self, item: ScheduledRequest, cache: int, old: int, kept: int) -> int:
        fed = super().run_drafter(item, cache, old, kept)
        for slot, state in self.draft_states.get(cache, {}).items():
            if slot == self.manager(cache).state(item.request.id) and item.is_generation:
                self.draft_states[cache][slot] = self.folded([REJECTED], state)
        return fed


@pytest.mark.parametrize(
    "broken", [RowBefore, KeepsRejected, SnapshotTooLate, DraftPassesBorders, DraftTakesGuesses]
)
def test_a_wrong_state_is_noticed(broken: type[StateSimulation]) -> None:
    with pytest.raises((AssertionError, KeyError)):  # a snapshot that was never made
        run(range(200), broken)
