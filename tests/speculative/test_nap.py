"""Steps at rest, of which a union tells its engines together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtspec.executor.drafter import Accepted
from trtspec.executor.step_plan import ScheduledRequest, StepPlan
from trtspec.speculative.hybrid.nap import MOST_STEPS
from trtspec.speculative.hybrid.rest import Rest

from .simulated_serving import ChainDrafter, ProfiledUnion, World, requests_of, union_of

ROW = 10e-3


class Records(ChainDrafter):
    """An engine that is told of every row of a request, in order, before it drafts behind them."""

    def __init__(self, world: World) -> None:
        super().__init__(world, 3, 0.01, seconds=5e-3)
        self.told: dict[int, int] = {}  # the next row, by request
        self.batches: list[int] = []  # told since the last step

    def prepare_draft_tokens(self, batch: StepPlan) -> None:
        for item in batch.items:
            assert self.told.setdefault(item.request.id, item.start) == item.start
        super().prepare_draft_tokens(batch)

    def on_accepted(self, batch: StepPlan, accepted: Sequence[Accepted]) -> list[tuple[()]]:
        self.batches.append(len(batch.items))
        for item, outcome in zip(batch.items, accepted, strict=True):
            assert self.told.setdefault(item.request.id, item.start) == item.start
            self.told[item.request.id] = item.start + len(outcome.rows)
        return super().on_accepted(batch, accepted)

    def release(self, request_id: int) -> None:
        self.told.pop(request_id, None)


def asleep() -> tuple[World, Records, ProfiledUnion]:
    """Two requests have come to rest, as no draft is ever right."""
    world = World(lambda rows: ROW * rows)
    drafter = Records(world)
    union = union_of(world, [drafter])
    union.profile_with(world.target, 12)
    return world, drafter, union


def test_engines_are_told_together() -> None:
    """At rest they hear nothing for as long as a nap lasts, and then all of it."""
    world, drafter, union = asleep()
    requests = requests_of(2)
    world.serve(union, requests, 300)
    counts = []
    for _ in range(4 * MOST_STEPS):
        drafter.batches.clear()
        world.serve(union, requests, 1)
        counts.append(len(drafter.batches))
    assert counts.count(0) >= 2 * MOST_STEPS and max(counts) == MOST_STEPS
    world.serve(union, requests, 2 * MOST_STEPS)
    assert len(requests[0].tokens) - 1 - drafter.told[0] <= MOST_STEPS


def test_steps_that_the_controller_leaves_out_are_not_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where nothing compares and no engine is worth its call."""
    monkeypatch.setattr(Rest, "rests", lambda *texts: False)
    monkeypatch.setattr(Rest, "num_sure", lambda *texts: 1000)
    world, drafter, union = asleep()
    requests = requests_of(2)
    world.serve(union, requests, 300)
    counts = []
    for _ in range(200):
        drafter.batches.clear()
        world.serve(union, requests, 1)
        counts.append(len(drafter.batches))
    assert counts.count(0) > 120
    before = drafter.num_calls
    world.serve(union, requests, 2000)
    assert drafter.num_calls > before, "it is still tried"


@pytest.mark.parametrize("how", ["ends", "is released", "begins", "waits", "feeds a prompt"])
def test_what_ends_a_nap(how: str) -> None:
    world, drafter, union = asleep()
    requests = requests_of(3)
    world.serve(union, requests[:2], 300)
    while len(requests[0].tokens) - 1 - drafter.told[0] < 3:
        world.serve(union, requests[:2], 1)
    if how == "ends":
        requests[0].finish_reason = "stop"
        world.serve(union, requests[:2], 1)
        assert drafter.told[0] == len(requests[0].tokens) - 1
    elif how == "is released":
        union.release(0)
        assert 0 not in union.live_requests
        world.serve(union, requests[1:2], 1)
        assert 0 not in drafter.told
    elif how == "begins":
        world.serve(union, requests, 1)
    elif how == "waits":
        world.num_waiting = 0
        world.serve(union, requests[:2], 1)
    else:
        items = [ScheduledRequest(r, len(r.tokens) - 1, 1, True, 0, True) for r in requests[:2]]
        assert union.skips_drafts(2)
        prompt = replace(items[0], request=requests[2], start=0, is_generation=False)
        union.prepare_draft_tokens(StepPlan((*items, prompt), num_waiting=1))
        assert drafter.told[1] == items[1].start
        return
    assert drafter.told[1] == len(requests[1].tokens) - 1


def test_a_queue_that_fills_ends_the_rest_of_an_empty_one() -> None:
    """Whether drafts pay where requests wait is known from when some did."""
    world = World(lambda rows: ROW * (1 + 0.01 * rows))
    drafter = ChainDrafter(world, 4, 0.9, says=0.9)
    drafter.host_seconds = 0.2 * ROW
    union = union_of(world, [drafter])
    union.profile_with(world.target, 12)
    requests = requests_of(2)
    world.serve(union, requests, 300)
    drafter.acceptance, world.num_waiting = 0.01, 0
    world.serve(union, requests, 300)
    while not union._nap.ids:
        world.serve(union, requests, 1)
    world.num_waiting, calls = 1, drafter.num_calls
    world.serve(union, requests, 6)
    assert drafter.num_calls - calls >= 4


@given(
    st.lists(
        st.tuples(
            st.sets(st.integers(0, 4)),
            st.sets(st.integers(0, 4)),
            st.integers(0, 1),
            st.integers(1, 60),
        ),
        max_size=8,
    )
)
@settings(deadline=None, max_examples=40)
def test_every_row_is_told_once_and_in_order(
    events: list[tuple[set[int], set[int], int, int]],
) -> None:
    """Whoever comes and goes, and waits (`Records` checks it)."""
    world, _, union = asleep()
    requests, alive = requests_of(5), set[int]()
    for come, go, world.num_waiting, steps in events:
        alive |= come
        world.serve(union, [requests[i] for i in sorted(alive)], steps) if alive else None
        for i in go & alive:
            union.release(i)
        alive -= go
        assert union.live_requests <= alive
