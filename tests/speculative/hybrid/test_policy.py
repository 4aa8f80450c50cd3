"""The policy against servers whose costs and acceptance are known, on a clock of their own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from trtspec.executor.step.step_plan import ScheduledRequest, StepPlan
from trtspec.executor.step.step_result import StepResult
from trtspec.ops.draft_batch import DraftBatch

from ..simulated_serving import (
    HOST,
    ChainDrafter,
    World,
    drawn_mixture,
    in_bursts,
    in_steps,
    mixture_cost,
    requests_of,
    union_of,
)

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
    world.serve(union, requests, 200)
    best, _ = world.best_fixed(drafter, batch)
    assert world.serve(union, requests, 300) >= 0.96 * best


def test_engines_are_told_what_time_is_worth() -> None:
    """By which they may end a rollout: tokens a second of late; nothing where all is wanted."""
    target = COSTS["rows cost"]
    for adapts in (True, False):
        world = World(target, 0.8)
        drafter = ChainDrafter(world, 5, 0.8, 4e-3)
        union = union_of(world, [drafter], adapts)
        union.profile_with(target, 12)
        requests = requests_of(2)
        world.serve(union, requests, 200)
        speed = world.serve(union, requests, 200)
        assert drafter.paces[-1] == pytest.approx(speed * adapts, rel=0.1)


@pytest.mark.parametrize("has_engine", [False, True])
def test_what_loses_is_off_within_32_steps_and_off_means_off(has_engine: bool) -> None:
    """A text at which drafts that paid lose: nothing is asked any more, but for probes."""
    world = World(COSTS["rows cost"], 0.9)
    drafter = ChainDrafter(world, 5, 0.9, 8e-3 if has_engine else 0.0)
    drafter.host_seconds = 0.0 if has_engine else 2e-3
    union = union_of(world, [drafter])
    union.profile_with(world.target, 6)
    (first,) = requests_of(1)
    world.serve(union, [first], 100)
    union.release(first.id)
    drafter.acceptance = world.acceptance = 0.0
    (second,) = requests_of(1)
    second.id = 7
    world.begin(union, second)
    world.serve(union, [second], 33)
    calls, told = drafter.num_calls, drafter.num_told
    world.serve(union, [second], 1000)
    assert drafter.num_calls - calls < 100 and drafter.num_told - told < 100
    tokens, work = world.tokens, world.work
    world.serve(union, [second], 1000)
    plain = world.target(1) + HOST
    assert (world.tokens - tokens) / (world.work - work) >= 0.98 / plain


def test_copies_are_found_again_soon() -> None:
    """What costs little is asked often, also after it found nothing for long."""
    world = World(COSTS["rows cost"], 0.0)

    class Copier(ChainDrafter):
        repeats = False

        def prepare_draft_tokens(self, batch: StepPlan) -> DraftBatch:
            self.num_calls += 1
            if self.repeats:
                return super().prepare_draft_tokens(batch)
            return DraftBatch.none(len(batch.items))

    drafter = Copier(world, 5, 0.9)
    union = union_of(world, [drafter])
    union.profile_with(world.target, 6)
    requests = requests_of(1)
    world.serve(union, requests, 1500)
    drafter.repeats, world.acceptance, before = True, 0.9, drafter.num_calls
    world.serve(union, requests, 80)
    assert drafter.num_calls - before > 80


def test_engines_come_back_when_they_pay() -> None:
    world = World(COSTS["rows cost"], 0.1)
    drafter = ChainDrafter(world, 5, 0.1, 3e-3)
    union = union_of(world, [drafter])
    union.profile_with(world.target, 6)
    requests = requests_of(1)
    world.serve(union, requests, 300)
    drafter.acceptance = world.acceptance = 0.9
    world.serve(union, requests, 1000)
    best, _ = world.best_fixed(drafter, 1)
    assert world.serve(union, requests, 100) >= 0.95 * best


@pytest.mark.parametrize("by", [in_steps, in_bursts])
def test_a_machine_that_changes_its_speed_changes_nothing_about_what_pays(
    by: Callable[[float], float],
) -> None:
    target = COSTS["rows cost"]
    shares = []
    for acceptance in (0.1, 0.9):
        world = World(target, acceptance, slowness=by)
        drafter = ChainDrafter(world, 5, acceptance, 4e-3)
        union = union_of(world, [drafter])
        union.profile_with(target, 24)
        requests = requests_of(4)
        world.serve(union, requests, 200)
        world.work = world.tokens = 0.0
        world.serve(union, requests, 600)
        best, _ = world.best_fixed(drafter, 4)
        shares.append(world.tokens / world.work / best)
    assert min(shares) >= 0.95, shares


def test_the_host_work_of_drafting_is_weighed() -> None:
    """An index whose drafts pay, but not with what looking for them takes."""
    for seconds, drafts in ((0.1e-3, True), (9e-3, False)):
        world = World(COSTS["rows are nearly free"], 0.3)
        drafter = ChainDrafter(world, 2, 0.3)
        drafter.host_seconds = seconds
        union = union_of(world, [drafter])
        union.profile_with(world.target, 12)
        requests = requests_of(4)
        world.serve(union, requests, 100)
        calls = drafter.num_calls
        world.serve(union, requests, 100)
        assert (drafter.num_calls - calls > 80) == drafts


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
        sizes.append(world.drafts.counts)
    assert np.mean(sizes, axis=0)[0] > 4 and np.mean(sizes, axis=0)[1] < 2


def test_an_engine_runs_where_the_cheap_drafts_promise_little() -> None:
    """One request in one step has a match, in the next it has none."""
    world = World(COSTS["rows cost"])

    class EveryOther(ChainDrafter):
        def prepare_draft_tokens(self, batch: StepPlan) -> DraftBatch:
            if len(world.verified) % 2:
                return super().prepare_draft_tokens(batch)
            return DraftBatch.none(len(batch.items))

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
    assert by_parity[0] >= 46 and by_parity[1] <= 8


@pytest.mark.parametrize(
    ("shared", "batch", "acceptance", "has_engine"),
    [(0.0, 1, 0.1, True), (0.6, 1, 0.9, True), (0.0, 8, 0.5, False), (0.6, 8, 0.5, True)],
)
def test_a_mixture_never_loses_to_no_drafts(
    shared: float, batch: int, acceptance: float, has_engine: bool
) -> None:
    """Its rows read experts of their own, so that a step's time is another each time, and six rows
    take up to four times as long as one. Outcomes are known of verified nodes alone."""
    world = World(drawn_mixture(shared), acceptance)
    drafter = ChainDrafter(world, 5, acceptance, 4e-3 if has_engine else 0.0)
    union = union_of(world, [drafter], has_own_rule=True)
    union.profile_with(mixture_cost, 6 * batch)
    requests = requests_of(batch)
    world.serve(union, requests, 100)
    alone = sum(world.target(batch) for _ in range(40)) / 40
    assert world.serve(union, requests, 300) >= 0.96 * batch / (alone + HOST)


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
        drafts = union.prepare_draft_tokens(batch)
        chosen.append(drafts)
        union.on_accepted(batch, StepResult.of([emitted] * 2, drafts))
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
