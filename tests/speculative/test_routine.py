"""Routine and StepsSince: every step is counted once, weighed or not."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from trtspec.speculative.hybrid.routine import Routine, StepsSince

STEPS = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4)), max_size=40)


@given(STEPS)
@settings(max_examples=100, deadline=None)
def test_a_routine_lasts_as_long_as_it_was_set_for(steps: list[tuple[int, int]]) -> None:
    """Each step has requests; one that is weighed says how many steps may follow it."""
    routine, left, usual, weighed, stands_for = Routine(), 0, 0, 0, 0
    for requests, length in steps:
        goes_on = left > 0 and requests == usual
        assert routine.goes_on(requests) == goes_on
        left -= goes_on
        if not goes_on:
            weighed += 1
            stands_for += routine.end()
            left, usual = length, requests
            routine.set(requests, length)
    taken = len(steps) - weighed
    assert stands_for + routine.end() == weighed + taken + 1


def test_what_ended_does_not_go_on() -> None:
    routine = Routine()
    assert not routine.goes_on(0)
    routine.set(2, 5)
    assert routine.goes_on(2) and not routine.goes_on(3) and routine.goes_on(2)
    assert routine.end() == 3 and not routine.goes_on(2)
    routine.set(2, 2)
    routine.leave_out()
    assert routine.num_left(2) == 1 and not routine.num_left(3), "it gets older meanwhile"


@given(st.lists(st.booleans(), max_size=30))
@settings(deadline=None)
def test_steps_since(done: list[bool]) -> None:
    since, total = StepsSince(), 0
    for is_done in done:
        if is_done:
            total += since.take()
        else:
            since.leave_out()
    assert total + since.take() == len(done) + 1
