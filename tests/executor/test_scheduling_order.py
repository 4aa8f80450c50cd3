"""Scheduler: whom a policy puts first."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from trtspec.executor.schedule.admission import ByPriority
from trtspec.executor.schedule.scheduler import OrderError
from trtspec.executor.step.request import Request

from .test_scheduler import CHAIN, add, make, rows, run


def shortest_first(waiting: Sequence[Request]) -> list[Request]:
    return sorted(waiting, key=lambda request: len(request.tokens))


def test_a_policy_orders_those_that_wait() -> None:
    asked: list[list[int]] = []

    def order(waiting: Sequence[Request]) -> Sequence[Request]:
        asked.append([request.id for request in waiting])
        return shortest_first(waiting)

    scheduler = make(batch=2, order=order)
    for id, prompt in enumerate((9, 5, 7, 3)):
        add(scheduler, id, prompt, max_tokens=2)
    assert [r[0] for r in rows(run(scheduler))] == [3, 1]
    assert [r.id for r in scheduler.waiting] == [2, 0]
    run(scheduler)  # both end
    assert [r[0] for r in rows(run(scheduler))] == [2, 0]
    assert asked == [[0, 1, 2, 3], [2, 0]]  # never about one, or none, or in a full batch


def test_who_arrives_late_may_begin_first() -> None:
    """With a lower priority than those that wait, in the next place that is free."""
    scheduler = make(batch=2, order=ByPriority(60.0))
    for id, (priority, length) in enumerate([(0, 2), (0, 9), (1, 2), (0, 2)]):
        add(scheduler, id, 3, length).priority = priority
    assert [r[0] for r in rows(run(scheduler))] == [0, 1]
    assert [r.id for r in scheduler.waiting] == [3, 2]
    run(scheduler)  # 0 ends
    add(scheduler, 4, 3).priority = -5
    assert [r[0] for r in rows(run(scheduler))] == [1, 4]
    assert [r.id for r in scheduler.waiting] == [3, 2]


def test_who_has_waited_long_begins_first() -> None:
    """However urgent the others are; of several who have, the one that came first."""
    scheduler = make(batch=1, order=ByPriority(60.0))
    for id, (priority, waited) in enumerate([(2, 0), (9, 61), (8, 90), (-5, 0), (0, 59)]):
        add(scheduler, id, 3, 1).priority = priority
        scheduler.waiting[id].arrival_time -= waited
    begun = []
    while scheduler.has_work:
        begun += [r[0] for r in rows(run(scheduler))]
    assert begun == [1, 2, 3, 4, 0]


def test_a_victim_is_ordered_among_those_that_wait() -> None:
    scheduler = make(blocks=6, batch=3, order=shortest_first)
    first = add(scheduler, 0, prompt=8, max_tokens=12)
    second = add(scheduler, 1, prompt=9, max_tokens=12)
    while not run(scheduler).preempted:
        pass
    third = add(scheduler, 2, prompt=1, max_tokens=2)
    while not first.is_finished and first.remaining_tokens:
        run(scheduler)
    assert third.remaining_tokens == 0 and second.remaining_tokens > 0
    while scheduler.has_work:
        run(scheduler)
    assert second.num_output_tokens == 12


def raises(waiting: Sequence[Request]) -> list[Request]:
    raise KeyError("nobody")


WRONG: dict[str, Any] = {
    "returned 2 that are not the same": lambda w: w[1:],
    "returned 4 that are not the same": lambda w: [*w, w[0]],
    "returned 3 that are not the same": lambda w: [w[0]] * 3,
    "returned 1 that are not the same": lambda w: [[]],
    "'NoneType' object is not iterable": lambda w: None,
    r"raises over 3 requests failed: KeyError\('nobody'\)": raises,
}


@pytest.mark.parametrize("message", WRONG)
def test_a_policy_must_return_the_same_requests(message: str) -> None:
    """The error changes nothing: without the policy all begin in order of arrival."""
    scheduler = make(order=WRONG[message])
    for id in range(3):
        add(scheduler, id, 5)
    with pytest.raises(OrderError, match=f"{message}.* returns the requests .* each once"):
        scheduler.schedule()
    assert scheduler.num_running == 0 and scheduler.num_waiting == 3
    scheduler._order = None
    assert [r[0] for r in rows(run(scheduler))] == [0, 1, 2]


@pytest.mark.parametrize("seed", range(20))
def test_all_finish_in_any_order(seed: int) -> None:
    """Whatever the policy puts first, some request that runs gets a row in every step."""
    rng = random.Random(seed)

    def any_order(waiting: Sequence[Request]) -> list[Request]:
        return rng.sample(waiting, len(waiting))

    scheduler = make(rng.randint(6, 9), batch=3, rows=8, needs=CHAIN, order=any_order)
    requests = [add(scheduler, id, rng.randint(1, 9), max_tokens=8) for id in range(7)]
    steps = 0
    first: Request | None = None  # of those that run
    while scheduler.has_work:
        batch = run(scheduler, accept=rng.randint(0, 3))
        assert first is None or not first.remaining_tokens or batch.items[0].request is first
        first = batch.items[0].request
        steps += 1
        assert steps < 500
    assert all(request.num_output_tokens == 8 for request in requests)
