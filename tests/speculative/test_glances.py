"""Glances: what a single text would bring is seen while nothing is drafted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtspec.executor.request import Request
from trtspec.executor.step_plan import StepPlan
from trtspec.speculative.hybrid.glances import Glances
from trtspec.speculative.hybrid.rest import Rest

from .simulated_serving import HOST, ChainDrafter, ProfiledUnion, World, requests_of, union_of

TARGET = 5e-3
LOOKING = 0.4e-3


def due(glances: Glances, steps: int, begun: int, tokens: float = 1.0) -> list[int]:
    """Which of so many steps are glances, if each brings that many tokens."""
    found = []
    for step in range(1, steps + 1):
        if glances.is_due(begun):
            found.append(step)
            glances.judge(tokens, 1.1)
    return found


def test_where_nothing_shows_they_get_rare_until_the_next_text() -> None:
    glances = Glances()
    assert due(glances, 300, 1) == [8, 24, 56, 120, 184, 248]
    assert due(glances, 50, 2) == [8, 24]


def test_they_go_on_while_they_gain() -> None:
    glances = Glances()
    assert due(glances, 40, 1, tokens=3.0) == list(range(8, 41))
    after = due(glances, 40, 1, tokens=1.0)
    assert after[:2] == [1, 2] and len(after) < 8, "a few steps that lose end them"
    glances = Glances()
    assert due(glances, 40, 1, tokens=1.3) == [8, 24], "less may be luck"


def test_what_is_never_judged_comes_again_later() -> None:
    """A prompt may be fed beside it, so that nothing is learned."""
    glances = Glances()
    assert [glances.is_due(1) for _ in range(40)].count(True) == 3


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 16), st.integers(0, 2), st.floats(1, 9), st.floats(1, 3))))
def test_steps_that_nobody_asked_about_count(events: list[tuple[int, int, float, float]]) -> None:
    """As many as are sure to be none may be passed over at once."""
    one, other, begun = Glances(), Glances(), 0
    for steps, new, tokens, price in events:
        begun += new
        steps = min(steps, one.num_left(begun))
        if steps:
            one.pass_over(steps)
            assert not any(other.is_due(begun) for _ in range(steps))
        assert one.num_left(begun) == other.num_left(begun) >= 0
        found = one.is_due(begun)
        assert found == other.is_due(begun)
        if found:
            one.judge(tokens, price)
            other.judge(tokens, price)


AtRest = Callable[..., tuple[World, "Copies", ProfiledUnion]]


class Copies(ChainDrafter):
    """Every draft is right, and said to be, from when the text begins to copy, and none before."""

    is_copying = False

    def num_right(self, request: Request) -> int:
        return self.length if self.is_copying else 0

    def prepare_draft_tokens(self, batch: StepPlan) -> None:
        self.says = 0.95 if self.is_copying else 0.3
        super().prepare_draft_tokens(batch)


@pytest.fixture
def at_rest(monkeypatch: pytest.MonkeyPatch) -> AtRest:
    """No draft was right so far, and nothing is compared any more."""

    def make(num_requests: int, *engines: ChainDrafter) -> tuple[World, Copies, ProfiledUnion]:
        world = World(lambda rows: TARGET + 0.5e-3 * rows)
        drafter = Copies(world, 4, 0.0)
        drafter.host_seconds = LOOKING
        for engine in engines:
            engine.world = world
        union = union_of(world, [drafter, *engines])
        union.profile_with(world.target, 48)
        world.serve(union, requests_of(num_requests), 1000)
        while not union._is_resting or union._is_comparing:
            world.serve(union, requests_of(num_requests), 1)
        monkeypatch.setattr(Rest, "_length", lambda *args: 1 << 20)
        return world, drafter, union

    return make


def test_a_text_that_begins_to_copy_is_seen_soon(at_rest: AtRest) -> None:
    world, drafter, union = at_rest(1)
    world.serve(union, requests_of(1), 200)
    assert sum(map(bool, world.verified[-200:])) <= 3, "hardly any draft promises anything"
    drafter.is_copying = True
    world.serve(union, requests_of(1), 200)
    drafting = [nodes > 0 for nodes in world.verified[-200:]]
    first = drafting.index(True)
    assert first <= 65 and sum(drafting[first:]) > 0.9 * (200 - first)


def test_they_cost_next_to_nothing(at_rest: AtRest) -> None:
    world, drafter, union = at_rest(1)
    calls = drafter.num_calls
    speed = world.serve(union, requests_of(1), 2000)
    assert 25 <= drafter.num_calls - calls <= 40
    assert speed > 0.998 / (world.target(1) + HOST)


def test_only_a_single_text_is_looked_at(at_rest: AtRest) -> None:
    """Of several texts the tokens of a step are a mean, which says little of one."""
    world, drafter, union = at_rest(2)
    calls = drafter.num_calls
    world.serve(union, requests_of(2), 600)
    assert drafter.num_calls == calls


def test_engines_are_left_alone(at_rest: AtRest) -> None:
    engine = ChainDrafter(World(lambda rows: 0.0), 3, 0.05, seconds=4e-3, name=2)
    world, drafter, union = at_rest(1, engine)
    drafter.is_copying = True
    calls, looks = engine.num_calls, drafter.num_calls
    world.serve(union, requests_of(1), 200)
    assert drafter.num_calls > looks + 100
    assert engine.num_calls == calls
