"""When a drafter that is off is asked again."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from trtspec.config.sampling import SamplingParams
from trtspec.executor.request import Request
from trtspec.speculative.hybrid.probe import FIRST, LEAST, LONGEST, MOST, SHORTEST, Probe, Repeats


class Backoff(RuleBasedStateMachine):
    """A wait is the multiple, which doubles and halves within its bounds, of what was lost."""

    def __init__(self) -> None:
        super().__init__()
        self.probe = Probe()
        self.multiple, self.lost, self.waited = FIRST, 1.0, 0

    @rule(steps=st.integers(1, 300))
    def pass_steps(self, steps: int) -> None:
        for _ in range(steps):
            self.waited += 1
            assert self.probe.passes() == (self.waited > self.wait)

    @rule(gained=st.booleans(), lost=st.floats(-3.0, 30.0))
    def judge(self, gained: bool, lost: float) -> None:
        self.probe.judge(gained, lost)
        self.lost, self.waited = max(lost, 0.0), 0
        self.multiple = min(max(self.multiple // 2 if gained else 2 * self.multiple, LEAST), MOST)

    @rule()
    def hasten(self) -> None:
        self.probe.hasten()
        if self.waited >= int(LEAST * self.lost):
            self.waited = LONGEST

    @rule()
    def restart(self) -> None:
        self.probe.restart()
        self.waited = 0

    @property
    def wait(self) -> int:
        return min(max(int(self.multiple * self.lost), SHORTEST), LONGEST)

    @invariant()
    def waits(self) -> None:
        assert self.probe.wait == self.wait


TestBackoff = Backoff.TestCase


@given(st.floats(0.1, 20.0), st.integers(100, 20_000))
def test_losing_probes_cost_little(lost: float, steps: int) -> None:
    """Less than 4 % of the time, for as long as it may be, beyond the first ones."""
    probe, paid = Probe(), 0.0
    for _ in range(steps):
        if probe.passes():
            paid += lost
            probe.judge(gained=False, lost=lost)
    assert paid <= lost * (1 + (steps / SHORTEST if lost * MOST < SHORTEST else 0)) + 0.04 * steps


def watched(tokens: Sequence[int], chunks: int) -> list[int]:
    """The lengths at which the text is said to repeat itself, looked at so many tokens a time."""
    params = SamplingParams(max_tokens=1 << 16)
    request = Request.create(1, tokens[:1], params, seed=0, max_seq_len=1 << 20)
    repeats, found = Repeats(), []
    for begin in range(1, len(tokens), chunks):
        request.tokens.extend(tokens[begin : begin + chunks])
        if repeats.watch(request):
            found.append(len(request.tokens))
    return found


def test_a_text_that_copies_is_seen_within_a_few_tokens() -> None:
    prompt = list(range(100))
    text = [*prompt, *range(1000, 1040), *prompt[30:60], *range(2000, 2040)]
    found = watched(text, 1)
    assert found[0] == 140 + 7 and found[-1] == 170
    assert watched(list(range(500)), 1) == []


@given(st.lists(st.integers(0, 2), min_size=1, max_size=60), st.integers(1, 7))
def test_it_does_not_matter_how_often_one_looks(tokens: list[int], chunks: int) -> None:
    ends = {*range(1 + chunks, len(tokens) + 1, chunks), len(tokens)}
    assert watched(tokens, chunks) == [end for end in watched(tokens, 1) if end in ends]
