"""When a drafter that is off is tried again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from trtspec.speculative.hybrid.probe import FIRST, MOST, SHORTEST, Probe


class Backoff(RuleBasedStateMachine):
    """A wait is what was lost, times a multiple that doubles or is quartered."""

    def __init__(self) -> None:
        super().__init__()
        self.probe = Probe()
        self.multiple, self.lost, self.waited = float(FIRST), 0.0, 0.0

    @rule(steps=st.integers(1, 300))
    def pass_steps(self, steps: int) -> None:
        for _ in range(steps):
            self.waited += 1
            again = self.waited > self.wait
            assert self.probe.passes() == again
            if again:
                if self.lost:
                    self.multiple = min(self.multiple * (2 if self.lost > 0 else 0.25), MOST)
                self.waited, self.lost = 0, 0.0
                assert self.probe.hope == 1.0

    @rule(lost=st.floats(-3.0, 30.0))
    def draft(self, lost: float) -> None:
        hope = self.probe.hope
        self.probe.num_asked += 1
        assert self.probe.hope < hope
        self.probe.drafted(lost)
        self.lost += lost
        self.waited = 0

    @rule(at_once=st.booleans())
    def begin_a_text(self, at_once: bool) -> None:
        self.probe.hasten(at_once)
        if at_once or 2 * self.waited >= self.wait:
            self.waited = self.wait

    @property
    def wait(self) -> float:
        return max(self.multiple * self.lost, SHORTEST)

    @invariant()
    def waits(self) -> None:
        assert self.probe.wait == self.wait


TestBackoff = Backoff.TestCase


@given(st.floats(0.1, 15.0), st.integers(100, 20_000))
def test_losing_tries_cost_little(lost: float, steps: int) -> None:
    """Less than 4 % of the time, for as long as it may be, beyond the first ones."""
    probe, paid = Probe(), 0.0
    for _ in range(steps):
        if probe.passes():
            paid += lost
            probe.drafted(lost)
    assert paid <= 3 * lost + 0.04 * steps
