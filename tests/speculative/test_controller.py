"""The controller against servers whose costs and acceptance are known, on a clock of their own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from trtspec.executor.drafter import Accepted, DraftCacheNeeds
from trtspec.executor.step_plan import ScheduledRequest, StepPlan
from trtspec.speculative.hybrid.controller import Controller
from trtspec.speculative.hybrid.costs import CostCurve
from trtspec.speculative.hybrid.member import Member
from trtspec.speculative.hybrid.outlook import Choice, Load, Outlook
from trtspec.speculative.hybrid.pause import LONGEST_PAUSE
from trtspec.speculative.hybrid.union import UnionDrafter

from .simulated_serving import ChainDrafter, World, requests_of, union_of

COSTS: dict[str, Callable[[int], float]] = {
    "rows cost": lambda rows: 19.5e-3 + 1e-3 * rows,
    "rows are nearly free": lambda rows: 10e-3 + 2e-5 * rows,
    "a knee": lambda rows: 10e-3 * max(1.0, rows / 32) + 5e-5 * rows,
}


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("acceptance", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("has_engine", [False, True])
def test_as_fast_as_the_best_fixed_setting(
    cost: str, batch: int, acceptance: float, has_engine: bool
) -> None:
    """None included, known only in hindsight."""
    target = COSTS[cost]
    world = World(target, acceptance)
    drafter = ChainDrafter(world, 5, acceptance, 4e-3 if has_engine else 0.0)
    union = union_of(world, [drafter])
    union.profile_with(target, 6 * batch)
    requests = requests_of(batch)
    world.serve(union, requests, 300)
    best, _ = world.best_fixed(drafter, batch)
    assert world.serve(union, requests, 400) >= 0.97 * best


def test_a_rollout_is_left_at_its_first_step_where_more_does_not_pay() -> None:
    """And all of it is made again once it does, though most rollouts told nothing of more."""
    target = COSTS["rows cost"]
    world = World(target, 0.6)
    drafter = ChainDrafter(world, 5, 0.6, 8e-3, first_step_seconds=1.5e-3)
    union = union_of(world, [drafter])
    union.profile_with(target, 48)
    requests = requests_of(8)
    world.serve(union, requests, 100)
    drafter.first_steps.clear()
    best, length = world.best_fixed(drafter, 8)
    assert length == 1 and best > 1.05 * world.best_fixed(drafter.without_first_step(), 8)[0]
    assert world.serve(union, requests, 250) >= 0.97 * best
    assert 5 <= drafter.first_steps.count(False) <= 12 < 225 <= len(drafter.first_steps)
    drafter.acceptance = world.acceptance = 0.95
    world.serve(union, requests, 300)
    best, length = world.best_fixed(drafter, 8)
    assert length == 5 and world.serve(union, requests, 100) >= 0.97 * best


@pytest.mark.parametrize("batch", [1, 4])
def test_what_does_not_pay_is_tried_seldom(batch: int) -> None:
    target = COSTS["rows cost"]
    world = World(target, 0.05)
    drafter = ChainDrafter(world, 5, 0.05, 20e-3)
    union = union_of(world, [drafter])
    union.profile_with(target, 6 * batch)
    requests = requests_of(batch)
    world.serve(union, requests, 200)
    before = drafter.num_calls
    world.serve(union, requests, 3 * LONGEST_PAUSE)
    assert 1 <= drafter.num_calls - before <= 0.012 * 3 * LONGEST_PAUSE
    drafter.sizes.clear()
    world.serve(union, requests, 3 * LONGEST_PAUSE)
    assert drafter.sizes.count(1) > 0.5 * len(drafter.sizes), "a single request is enough to see"


@pytest.mark.parametrize("adapts", [True, False])
def test_engines_that_are_not_in_use_are_not_fed(adapts: bool) -> None:
    target = COSTS["rows are nearly free"]
    world = World(target)
    good, bad = ChainDrafter(world, 5, 0.9, 1e-3), ChainDrafter(world, 5, 0.05, 9e-3, name=2)
    cheap = ChainDrafter(world, 1, 0.05, name=3)
    union = union_of(world, [good, bad, cheap], adapts)
    union.profile_with(target, 6)
    requests = requests_of(1)
    world.serve(union, requests, 1)
    assert good.is_fed and bad.is_fed, "nothing is known of them yet"
    world.serve(union, requests, 99)
    assert good.is_fed and cheap.is_fed
    assert bad.is_fed == (not adapts)


def test_a_change_of_regime_is_found(caplog: pytest.LogCaptureFixture) -> None:
    target = COSTS["rows cost"]
    world = World(target, 0.1)
    drafter = ChainDrafter(world, 5, 0.1, 3e-3)
    union = union_of(world, [drafter])
    union.profile_with(target, 6)
    requests = requests_of(1)
    with caplog.at_level(logging.INFO, logger="trtspec"):
        world.serve(union, requests, 150)
        for acceptance in (0.9, 0.1):
            drafter.acceptance = world.acceptance = acceptance
            world.serve(union, requests, LONGEST_PAUSE + 100)
            best, _ = world.best_fixed(drafter, 1)
            assert world.serve(union, requests, 100) >= 0.95 * best
    regimes = [m.split(";")[0] for m in caplog.messages if m.startswith("speculation:")]
    assert "speculation: 1, verifying drafts" in regimes
    assert "speculation: no draft engine, verifying nothing" in regimes


def test_a_slower_machine_changes_nothing_about_what_pays() -> None:
    """All is worth verifying, at both speeds; but not if the pace at the one were held against the
    rows at the other."""

    def machine(slowness: float) -> Callable[[int], float]:
        return lambda rows: slowness * (20e-3 + 1.4e-3 * rows)

    world = World(machine(1.0), 0.9)
    drafter = ChainDrafter(world, 5, 0.9, 4e-3)
    union = union_of(world, [drafter])
    union.profile_with(world.target, 24)
    requests = requests_of(4)
    world.serve(union, requests, 200)
    for slowness in (1.4, 1.0, 1.4, 1.0):
        world.target = machine(slowness)
        world.verified.clear()
        world.serve(union, requests, 60)
        assert np.mean(np.array(world.verified) == 20) > 0.9


def weighings(union: UnionDrafter, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by the number of requests whenever the union weighs its engines."""
    plan, seen = union._controller.plan, []

    def noted(load: Load, *arguments: Any) -> Any:
        seen.append(load.requests)
        return plan(load, *arguments)

    monkeypatch.setattr(union._controller, "plan", noted)
    return seen


def test_engines_that_pay_are_weighed_in_every_fourth_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """And when the number of requests changes; but always where other drafters run beside them, as
    what an engine adds to their trees differs from step to step."""
    target = COSTS["rows are nearly free"]
    world = World(target, 0.9)
    engine = ChainDrafter(world, 5, 0.9, 1e-3)
    union = union_of(world, [engine])
    union.profile_with(target, 24)
    requests = requests_of(3)
    world.serve(union, requests, 100)
    seen, calls = weighings(union, monkeypatch), engine.num_calls
    world.serve(union, requests, 80)
    assert set(seen) == {3} and 15 <= len(seen) <= 25 and engine.num_calls >= calls + 72
    seen.clear()
    world.serve(union, requests[:2], 1)
    assert seen == [2]

    cheap = ChainDrafter(world, 2, 0.9, name=2)
    union = union_of(world, [cheap, engine])
    union.profile_with(target, 24)
    world.serve(union, requests, 100)
    seen = weighings(union, monkeypatch)
    world.serve(union, requests, 10)
    assert seen == [3] * 10


def test_requests_differ() -> None:
    """The rows go to the one whose drafts are right."""
    world = World(COSTS["rows cost"])

    class Uneven(ChainDrafter):
        def num_right(self, request):  # type: ignore[no-untyped-def]
            return self.length if request.id == 0 else 0

    union = union_of(world, [Uneven(world, 5, 0.5)])
    union.profile_with(world.target, 12)
    requests = requests_of(2)
    world.serve(union, requests, 200)
    sizes = []
    for _ in range(20):
        world.serve(union, requests, 1)
        sizes.append([len(r.draft) for r in requests])
    assert np.mean(sizes, axis=0)[0] > 4 and np.mean(sizes, axis=0)[1] < 2


def test_an_engine_runs_where_the_cheap_drafts_promise_little() -> None:
    """One request in one step has a match, in the next it has none."""
    world = World(COSTS["rows cost"])

    class EveryOther(ChainDrafter):
        def prepare_draft_tokens(self, batch: StepPlan) -> None:
            if len(world.verified) % 2:
                super().prepare_draft_tokens(batch)

    cheap = EveryOther(world, 5, 0.98, 0.0, 0.9, 1)
    engine = ChainDrafter(world, 5, 0.8, 6e-3, 0.8, 2)
    union = union_of(world, [cheap, engine])
    union.profile_with(world.target, 6)
    requests = requests_of(1)
    world.serve(union, requests, 300)
    by_parity = [0, 0]
    for _ in range(100):
        before, parity = engine.num_calls, len(world.verified) % 2
        world.serve(union, requests, 1)
        by_parity[parity] += engine.num_calls - before
    assert by_parity[0] >= 48 and by_parity[1] <= 6


def controller_of(target: Callable[[int], float], sees_all: bool = True) -> Controller:
    cost = CostCurve()
    cost.profile(target, 48)
    return Controller(cost, sees_all=sees_all)


@pytest.mark.parametrize("sees_all", [False, True])
def test_first_drafts_are_verified_where_nothing_else_tells_of_them(sees_all: bool) -> None:
    controller = controller_of(COSTS["rows cost"], sees_all)
    load = Load(8, 8)
    assert controller.plan(load, np.zeros((8, 0)), [Outlook(None, 1e-3)]) == ((Choice(0),), ())
    assert controller.count(load, np.full(40, 0.05), 1e-3) == (0 if sees_all else 40)


@pytest.mark.parametrize("good", [0, 8, 40])
def test_an_engine_is_learned_of_by_first_steps_where_few_nodes_are_verified(good: int) -> None:
    controller = controller_of(COSTS["rows cost"])
    load, none = Load(8, 8), np.zeros((8, 0))
    unknown = Outlook(None, 20e-3, first_step=Outlook(None, 5e-3))
    for step in range(8):
        chosen, _ = controller.plan(load, none, [unknown])
        assert chosen == (Choice(0, step >= 3 and good <= 8),)
        assert controller.count(load, [0.9] * good + [0.001] * (40 - good), 20e-3) == good


def test_slow_first_steps_do_not_let_an_engine_seem_worth_its_time() -> None:
    """An engine is weighed against steps without drafts, though none was taken so far."""
    controller = controller_of(COSTS["rows cost"])
    load, none = Load(8, 8), np.zeros((8, 0))
    for _ in range(4):
        controller.plan(load, none, [Outlook(None, 0.2)])
        controller.count(load, np.full(40, 0.9), 0.2)
        controller.observe(load, 40, 44, 0.2, 0.0)
    chances = 0.6 ** np.arange(1.0, 6.0)[None].repeat(8, 0)
    chosen, _ = controller.plan(load, none, [Outlook(chances, 20e-3)])
    assert not chosen


def test_prompts_make_no_engine_seem_worth_its_time() -> None:
    """They take long whatever is drafted beside them."""
    controller = controller_of(COSTS["rows cost"])
    none, load = np.zeros((5, 0)), Load(5, 5 + 250)
    outlook = Outlook(0.7 ** np.arange(1.0, 6.0)[None].repeat(5, 0), 66e-3)
    for step in range(100):
        chosen, _ = controller.plan(load, none, [outlook])
        assert not chosen or step < 3, "the first steps are for seeing it"
        controller.count(load, np.zeros(0), 0.0)
        controller.observe(load, 0, 5, 0.0, 0.0)
    chosen, _ = controller.plan(Load(5, 5), none, [outlook])
    assert not chosen


def test_a_whole_rollout_now_and_then_is_not_verified_whole() -> None:
    """It is made so that more is known, where most of its nodes do not pay."""
    world = World(COSTS["rows cost"], 0.6)
    drafter = ChainDrafter(world, 15, 0.6, 8e-3, first_step_seconds=1.5e-3)
    union = union_of(world, [drafter])
    union.profile_with(world.target, 128)
    requests = requests_of(8)
    world.serve(union, requests, 100)
    drafter.first_steps.clear()
    world.verified.clear()
    world.serve(union, requests, 400)
    assert drafter.first_steps.count(False) >= 8 and max(world.verified) <= 32


def test_an_engine_in_use_is_fed_the_prompt_beside_it() -> None:
    """Though it drafts for one request at most in that step: prompts make rows dear."""
    world = World(lambda rows: 10e-3 * max(1.0, (rows / 32) ** 2), 0.7)
    drafter = ChainDrafter(world, 1, 0.7, 2e-3, first_step_seconds=2e-3)
    union = union_of(world, [drafter])
    union.profile_with(world.target, 512)
    requests = requests_of(4)
    world.serve(union, requests, 60)
    assert drafter.is_fed
    (new,) = requests_of(1)
    items = [ScheduledRequest(r, len(r.tokens) - 1, 1, True, 1, True) for r in requests[:3]]
    batch = StepPlan((*items, ScheduledRequest(new, 0, 250, False, 0, True)))
    calls = drafter.num_calls
    union.prepare_draft_tokens(batch)
    union.on_accepted(batch, [Accepted((0,), (1,))] * 4)
    assert drafter.sizes[calls:] in ([], [1]) and drafter.is_fed


def test_rows_that_cost_more_than_was_profiled() -> None:
    """As they do behind long contexts: what a step without drafts takes is not as much more."""
    world = World(lambda rows: 10e-3 + 1.25e-3 * rows, 0.6)
    drafter = ChainDrafter(world, 1, 0.6, 4e-3, first_step_seconds=4e-3)
    union = union_of(world, [drafter])
    union.profile_with(lambda rows: 14e-3 + 0.75e-3 * rows, 48)
    requests = requests_of(8)
    world.serve(union, requests, 100)
    best, length = world.best_fixed(drafter, 8)
    assert length == 0 and world.serve(union, requests, 200) >= 0.99 * best


def test_prompts_that_an_engine_in_use_would_be_fed_are_weighed() -> None:
    none, load = np.zeros((8, 0)), Load(8, 8)
    chances = np.full((8, 1), 0.9)
    for upkeep in (0.0, 8e-3):
        controller = controller_of(COSTS["a knee"])
        for _ in range(20):
            chosen, _ = controller.plan(load, none, [Outlook(chances, 1e-3, upkeep)])
            nodes = controller.count(load, chances[: 8 if chosen else 0, 0], 1e-3)
            controller.observe(load, nodes, 8 + nodes, 1e-3, 0.0)
        assert bool(chosen) == (not upkeep)


@pytest.mark.parametrize("waits", [False, True])
def test_what_a_draft_is_fed_of_prompts_is_its_upkeep(waits: bool) -> None:
    """If it could do without while it is not in use."""
    world = World(COSTS["a knee"], 0.9)
    drafter = ChainDrafter(world, 3, 0.9, 2e-3, first_step_seconds=1e-3)
    drafter.needs = replace(drafter.needs, caches=(DraftCacheNeeds(from_tokens=waits),))
    drafter.row_seconds = 0.5e-3
    cache: Any = SimpleNamespace(committed=lambda request: len(request.tokens) - 1)
    member = Member("1", drafter, drafter, cache)  # type: ignore[arg-type]
    member.profile(8)
    union = UnionDrafter([member], drafter.needs, adapts=True, clock=world.clock)
    requests = requests_of(2)
    world.serve(union, requests, 50)
    items = [ScheduledRequest(r, len(r.tokens) - 1, 1, True, 3, True) for r in requests]
    outlook = member.outlook(items, prompt_rows=4.0)
    assert outlook.first_step is not None and outlook.first_step.upkeep == outlook.upkeep
    assert outlook.upkeep == pytest.approx(2e-3 if waits else 0.0, rel=0.05)


def test_a_prompt_beside_it_ends_no_drafting() -> None:
    """Its rows make those of drafts dear in one step, not in the next: that needs not be as much
    better as it must be to begin with drafting."""

    usual, prompt, poor = (Load(8, 8), 0.9), (Load(8, 8 + 100), 0.5), (Load(8, 8), 0.0)

    def drafts(chance: float, before: tuple[Load, float]) -> bool:
        controller, none = controller_of(COSTS["a knee"]), np.zeros((8, 0))
        chosen: tuple[Choice, ...] = ()
        for load, now in (*[usual] * 60, before, (Load(8, 8), chance)):
            outlook = Outlook(np.full((8, 1), now), 3e-3)
            chosen, _ = controller.plan(load, none, [outlook])
            nodes = controller.count(load, np.full(8 if chosen else 0, now), 3e-3)
            controller.observe(load, nodes, 8 + round(now * nodes), 3e-3, 0.0)
        return bool(chosen)

    for percent in range(100):
        chance = percent / 100
        if drafts(chance, usual) and not drafts(chance, poor):
            assert drafts(chance, prompt)
            return
    pytest.fail("to begin asks for no more than to go on")


def test_the_choice_is_made_without_the_outcome() -> None:
    """Two servers that differ only in what becomes of the step's drafts choose the same nodes."""
    chosen = []
    for emitted in ((11,), (-5, -5, -5)):
        world = World(COSTS["rows cost"])
        union = union_of(world, [ChainDrafter(world, 5, 0.6)])
        union.profile_with(world.target, 12)
        requests = requests_of(2)
        world.serve(union, requests, 60)
        batch = StepPlan(
            tuple(ScheduledRequest(r, len(r.tokens) - 1, 1, True, 5, True) for r in requests)
        )
        union.prepare_draft_tokens(batch)
        chosen.append([r.draft for r in requests])
        union.on_accepted(batch, [Accepted((0,), emitted)] * 2)
    assert chosen[0] == chosen[1]


def test_without_adapting_everything_drafts_and_is_verified() -> None:
    """Whatever it costs: such a server's steps are the same on every machine."""
    world = World(COSTS["rows cost"])
    cheap, engine = ChainDrafter(world, 3, 0.1), ChainDrafter(world, 5, 0.1, 1.0, name=2)
    union = union_of(world, [cheap, engine], adapts=False)
    union.profile_with(world.target, 12)
    world.serve(union, requests_of(2), 60)
    assert engine.num_calls == cheap.num_calls == 60
    assert set(world.verified) == {2 * union.needs.max_nodes}
