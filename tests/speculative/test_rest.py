"""Rest: drafters without an engine are not asked where that does not pay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest

from trtspec.speculative.hybrid.rest import Rest

from .simulated_serving import (
    ChainDrafter,
    World,
    in_bursts,
    in_steps,
    requests_of,
    steady,
    union_of,
)

PLAIN = 5e-3
STEPS = 4000


def asked(rest: Rest, steps: int, tokens: Callable[[int], float], ratio: float) -> list[bool]:
    """Whether each step drafted, if one that does takes ``ratio`` times as long."""
    drafted = []
    for step in range(steps):
        drafts = not rest.rests()
        drafted.append(drafts)
        took, compared = ratio if drafts else 1.0, rest.is_comparing
        rest.observe(drafts, tokens(step) if drafts else 1.0, took, compared=compared)
    return drafted


def test_what_does_not_pay_rests() -> None:
    drafted = asked(Rest(), STEPS, lambda step: 1.05, 1.1)
    assert sum(drafted) < 0.16 * STEPS, "that costs a hundredth, as these lose a twentieth"
    drafted = asked(Rest(), STEPS, lambda step: 1.1, 2.5)
    assert sum(drafted) < 0.01 * STEPS, "what loses much is tried seldom"
    assert any(drafted[-1000:]), "it is tried for ever"


def test_a_few_steps_at_the_start_decide_little() -> None:
    """Their tokens scatter: where drafts take little, they have more steps to bring something."""
    assert sum(asked(Rest(), 30, lambda step: 1.0, 1.1)) >= 20
    assert sum(asked(Rest(), 30, lambda step: 1.0, 2.0)) <= 8
    assert sum(asked(Rest(), 200, lambda step: 1.0, 1.1)) < 0.5 * 200


def test_what_pays_is_always_asked() -> None:
    drafted = asked(Rest(), STEPS, lambda step: 1.3, 1.1)
    assert (STEPS - sum(drafted)) * (1 - 1.1 / 1.3) < 0.015 * STEPS


def test_a_text_that_begins_to_repeat_is_noticed() -> None:
    drafted = asked(Rest(), STEPS, lambda step: 3.0 if step >= 2000 else 1.0, 1.1)
    first = drafted.index(True, 2000)
    assert first < 2080 and sum(drafted[first:]) > 0.95 * (STEPS - first)


@pytest.mark.parametrize(("ratio", "length"), [(1.1, 8), (1.5, 8), (1.5, 100)])
def test_new_texts_are_tried_sooner(ratio: float, length: int) -> None:
    """Though drafts have not paid in any; at less than 3 % of the time, however short they are."""

    def longest_rest(texts: int, length: int) -> int:
        rest, asked = Rest(), [0]
        for step in range(STEPS):
            drafts = not rest.rests(texts, step // length)
            rest.observe(drafts, 1.0, ratio if drafts else 1.0, compared=rest.is_comparing)
            if drafts:
                asked.append(step)
        assert len(asked) * (ratio - 1) < 0.03 * STEPS
        return max(later - earlier for earlier, later in pairwise(asked))

    same = longest_rest(1, STEPS)
    assert longest_rest(1, length) < 0.7 * same
    assert longest_rest(8, 100) > 0.9 * same, "few of many texts are new"


@pytest.mark.parametrize("others_draft", [True, False])
def test_trials_count_among_what_comparisons_take(others_draft: bool) -> None:
    """An engine that does not pay is tried in some of them, and feeds its cache before that."""
    rest, spent, was_comparing = Rest(), 0.0, False
    for step in range(STEPS):
        drafts = not rest.rests(1, step // 64)
        if rest.is_comparing and not was_comparing:
            spent += 2.0
            rest.spend(2.0)
        else:
            took = 1.05 if drafts and others_draft else 1.0
            rest.observe(drafts and others_draft, 1.0, took, compared=rest.is_comparing)
        was_comparing = rest.is_comparing
    assert 0 < spent < 0.02 * STEPS


@pytest.mark.parametrize(("looked_at", "unseen", "pays"), [(1.05, 1.0, False), (1.0, 1.05, True)])
def test_steps_at_rest_count_as_nobody_looks_at_them(
    looked_at: float, unseen: float, pays: bool
) -> None:
    """Drafts bring 1.05 tokens in 1.07 steps: more than those of a comparison that are looked at
    where these take 1.05, and less than those that follow one another."""
    rest, drafted = Rest(), list[bool]()
    while len(drafted) < STEPS:
        drafts = not rest.rests()
        drafted.append(drafts)
        seconds = 1.07 if drafts else looked_at
        rest.observe(drafts, 1.05 if drafts else 1.0, seconds, compared=rest.is_comparing)
        if not drafts and (steps := rest.num_sure(1, 0)):
            rest.pass_over(steps, steps * unseen)
            drafted += [False] * steps
    assert (sum(drafted) > 0.5 * STEPS) == pays == rest.pays


def test_a_pause_while_nobody_looks_is_no_cost() -> None:
    """It counts as three steps, beside the other one of its comparison."""
    rest, paused = Rest(), False
    for _ in range(200):
        drafts = not rest.rests()
        rest.observe(drafts, 1.0, 1.1 if drafts else 1.0, compared=rest.is_comparing)
        if not drafts and rest.num_sure(1, 0):
            rest.pass_over(1, 1.0 if paused else 30.0)
            paused = True
    assert not rest.pays and rest._ratios[0] == pytest.approx(1.1 / 2.0)


def test_a_slow_moment_of_catching_up_puts_nothing_off() -> None:
    """The first step of a comparison is dear where the machine pauses in it."""
    rest, begins, was_comparing = Rest(), list[int](), False
    for step in range(STEPS):
        drafts = not rest.rests()
        is_first = rest.is_comparing and not was_comparing
        if is_first:
            begins.append(step)
        was_comparing = rest.is_comparing
        took = 1.1 if drafts else 1.0
        if is_first and len(begins) % 8 == 0:
            took = 40.0
        rest.observe(drafts, 1.0, took, compared=rest.is_comparing)
    gaps = [later - earlier for earlier, later in pairwise(begins[6:])]
    assert len(gaps) > 16 and max(gaps) < 1.2 * min(gaps)


def test_where_nothing_is_drafted_new_texts_change_nothing() -> None:
    """An engine that is not worth its call has drafted for neither half of a comparison."""
    rest, compared = Rest(), 0
    for step in range(STEPS):
        rest.rests(1, step // 8)
        compared += rest.is_comparing
        rest.observe(False, 1.0, 1.0, compared=rest.is_comparing)
    assert 0 < compared < 0.03 * STEPS


def test_a_text_that_no_longer_repeats_is_noticed() -> None:
    drafted = asked(Rest(), STEPS, lambda step: 1.0 if step >= 2000 else 3.0, 1.1)
    assert sum(drafted[2300:]) < 0.1 * (STEPS - 2300)


def test_a_pause_of_the_machine_is_no_cost() -> None:
    rest = Rest()
    for step in range(400):
        drafts = not rest.rests()
        seconds = 30.0 if drafts and step % 7 == 0 else 1.05 if drafts else 1.0
        rest.observe(drafts, 1.6, seconds, compared=rest.is_comparing)
    assert rest.pays


def test_a_pause_in_a_comparison_does_not_put_off_the_next_one() -> None:
    """That is due by what steps usually take, so that the next text is tried."""
    rest, later = Rest(), []
    for step in range(400):
        drafts = not rest.rests(1, step // 64)
        seconds = 30.0 if step == 4 else 1.1 if drafts else 1.0
        rest.observe(drafts, 1.0, seconds, compared=rest.is_comparing)
        if drafts and step > 8:
            later.append(step)
    assert later[0] < 128


class Host(ChainDrafter):
    """An index: it takes host time in every step, and its acceptance changes with the text."""

    def __init__(self, world: World, acceptances: Sequence[float], seconds: float) -> None:
        super().__init__(world, 4, acceptances[0], says=acceptances[0])
        self.acceptances, self.host_seconds = acceptances, seconds

    def num_right(self, request: object) -> int:
        place = len(request.tokens) // 400 % len(self.acceptances)  # type: ignore[attr-defined]
        self.acceptance = self.says = self.acceptances[place]
        return super().num_right(request)  # type: ignore[arg-type]


def speed(
    acceptances: Sequence[float], slowness: Callable[[float], float], how: str, batch: int
) -> float:
    world = World(lambda rows: PLAIN * (1 + 0.01 * rows), slowness=slowness)
    drafter = Host(world, acceptances, 0.08 * PLAIN)
    union = union_of(world, [drafter], adapts=how == "adaptive")
    union.profile_with(world.target, 64)
    if how == "none":
        union.skips_drafts = lambda num_requests: True  # type: ignore[method-assign]
        drafter.host_seconds = 0.0
    return world.serve(union, requests_of(batch), STEPS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("acceptances", "slowness"),
    [
        ((0.05,), in_bursts),
        ((0.2,), steady),
        ((0.2,), in_steps),
        ((0.2,), in_bursts),
        ((0.7,), in_bursts),
        ((0.05, 0.05, 0.8, 0.05), in_bursts),
    ],
)
def test_never_much_slower_than_the_best_of_none_and_always(
    acceptances: Sequence[float], slowness: Callable[[float], float]
) -> None:
    best = max(speed(acceptances, slowness, how, 1) for how in ("none", "always"))
    assert speed(acceptances, slowness, "adaptive", 1) > 0.97 * best


def test_texts_are_taken_in_when_a_request_ends_at_rest() -> None:
    """Of resting members only those requests are told that end."""
    world = World(lambda rows: PLAIN)
    drafter = Host(world, (0.01,), PLAIN)
    union = union_of(world, [drafter])
    union.profile_with(world.target, 8)
    told: list[int] = []
    plainly = drafter.on_accepted

    def on_accepted(batch, accepted):  # type: ignore[no-untyped-def]
        told.append(len(batch.items))
        return plainly(batch, accepted)

    drafter.on_accepted = on_accepted  # type: ignore[method-assign]
    requests = requests_of(2)
    world.serve(union, requests, 100)
    while not union.skips_drafts(2):
        world.serve(union, requests, 1)
    told.clear()
    world.serve(union, requests, 2)
    assert told == []
    requests[0].finish_reason = "stop"
    world.serve(union, requests, 1)
    assert told == [1]
