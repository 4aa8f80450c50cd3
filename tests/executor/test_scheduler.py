"""Scheduler: budgets, order, preemption, progress."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtspec.config.sampling import SamplingParams
from trtspec.errors import ConfigError, RequestError
from trtspec.executor.schedule.kv_cache import KVCacheManager
from trtspec.executor.schedule.resources import ResourceManager
from trtspec.executor.schedule.scheduler import Scheduler
from trtspec.executor.step.drafter import DraftCacheNeeds, DrafterNeeds
from trtspec.executor.step.request import Request
from trtspec.executor.step.step_plan import StepPlan
from trtspec.executor.step.step_result import StepResult

CHAIN = DrafterNeeds(max_nodes=3, max_depth=3)
MODEL = DrafterNeeds(max_nodes=3, max_depth=3, caches=(DraftCacheNeeds(slots=2),))
PAIR = replace(MODEL, caches=(DraftCacheNeeds(slots=2), DraftCacheNeeds(slots=6)))
NONE = DrafterNeeds()


def make(
    blocks: int = 32,
    *draft_blocks: int,
    needs: DrafterNeeds = NONE,
    batch: int = 4,
    rows: int = 64,
    max_seq_len: int = 64,
    **options: Any,
) -> Scheduler:
    drafts = [KVCacheManager(number, 4) for number in draft_blocks]
    resources = ResourceManager(KVCacheManager(blocks, 4), drafts)
    return Scheduler(resources, batch, rows, max_seq_len, needs, **options)


def add(scheduler: Scheduler, id: int, prompt: int, max_tokens: int = 8, base: int = 0) -> Request:
    """A request whose prompt shares nothing with others unless they have the same base."""
    tokens = [1000 * (base or id + 1) + i for i in range(prompt)]
    request = Request.create(id, tokens, SamplingParams(max_tokens=max_tokens), 0, max_seq_len=64)
    scheduler.add(request)
    return request


def run(scheduler: Scheduler, accept: int = 0) -> StepPlan:
    """One step: all drafts up to `accept` per request are accepted; finishes what is complete."""
    batch = scheduler.schedule()
    resources = scheduler._resources
    resources.check_invariants()
    emitted = [[7] * (min(accept, item.max_nodes) + 1) * item.samples for item in batch.items]
    drafted = []
    for item in batch.items:
        drafts = [cache.committed(item.request) for cache in resources.draft_caches]
        if not item.is_generation or item.max_nodes:
            drafts = [item.start + item.num_rows for _ in drafts]
        drafted.append(drafts)
    result = StepResult.of(emitted)
    assert resources.extend(batch, result) == []
    resources.commit(batch, result, drafted)
    for item in batch.items:
        if item.request.remaining_tokens == 0:
            scheduler.finish(item.request)
    resources.check_invariants()
    return batch


def rows(batch: StepPlan) -> list[tuple[int, int, int, int]]:
    return [(i.request.id, i.start, i.num_rows, i.max_nodes) for i in batch.items]


def test_construction_names_both_numbers() -> None:
    with pytest.raises(ConfigError, match=r"max_num_tokens=3 .*max_batch_size=4"):
        make(rows=3)
    with pytest.raises(ConfigError, match="max_batch_size=0"):
        make(batch=0)
    with pytest.raises(ConfigError, match="needs 1 draft KV caches, but there are 0"):
        make(needs=MODEL)
    with pytest.raises(ConfigError, match="needs 2 draft KV caches, but there are 3"):
        make(32, 4, 4, 4, needs=PAIR)


@pytest.mark.parametrize(
    "fields",
    [
        {"max_nodes": -1},
        {"max_nodes": 3},
        {"max_depth": 3},
        {"max_nodes": 2, "max_depth": 3},
    ],
)
def test_impossible_needs_are_refused(fields: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        DrafterNeeds(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("needs", "remaining", "nodes"),
    [
        (CHAIN, 1, 0),
        (CHAIN, 3, 2),
        (CHAIN, 9, 3),
        (DrafterNeeds(7, 3), 2, 7),
        (DrafterNeeds(7, 3), 1, 0),
        (NONE, 9, 0),
    ],
)
def test_a_step_reserves_the_nodes_of_use(needs: DrafterNeeds, remaining: int, nodes: int) -> None:
    scheduler = make(needs=needs)
    add(scheduler, 0, prompt=3, max_tokens=remaining + 1)
    run(scheduler)
    assert scheduler.schedule().items[0].max_nodes == nodes


def test_prefill_then_generation() -> None:
    scheduler = make(needs=CHAIN)
    request = add(scheduler, 0, prompt=5)
    batch = run(scheduler)
    assert rows(batch) == [(0, 0, 5, 0)] and batch.items[0].samples
    assert not batch.items[0].is_generation
    batch = run(scheduler, accept=2)
    assert rows(batch) == [(0, 5, 1, 3)] and batch.items[0].is_generation
    assert rows(run(scheduler)) == [(0, 8, 1, 3)]
    assert len(request.tokens) == 10


def test_drafts_shrink_near_the_end_of_the_output() -> None:
    scheduler = make(needs=CHAIN)
    add(scheduler, 0, prompt=5, max_tokens=4)
    nodes = [run(scheduler).items[0].max_nodes for _ in range(4)]
    assert nodes == [0, 2, 1, 0]
    assert not scheduler.has_work and not run(scheduler).items


def test_chunked_prefill_shares_the_row_budget() -> None:
    scheduler = make(rows=8, batch=4)
    for id, prompt in enumerate((5, 9, 2)):
        add(scheduler, id, prompt)
    assert rows(run(scheduler)) == [(0, 0, 5, 0), (1, 0, 3, 0)]
    assert rows(run(scheduler)) == [(0, 5, 1, 0), (1, 3, 6, 0), (2, 0, 1, 0)]
    batch = run(scheduler)
    assert rows(batch) == [(0, 6, 1, 0), (1, 9, 1, 0), (2, 1, 1, 0)]
    assert all(item.is_generation for item in batch.items)  # one row left of a prompt: a root


def test_every_generating_request_gets_its_row_before_any_draft() -> None:
    scheduler = make(needs=CHAIN, rows=7, batch=4)
    for id in range(5):
        add(scheduler, id, prompt=1, max_tokens=20)
    # Drafts never fill the budget while somebody could be admitted.
    assert rows(run(scheduler)) == [(0, 0, 1, 3), (1, 0, 1, 2)]
    assert rows(run(scheduler)) == [(0, 1, 1, 3), (1, 1, 1, 1), (2, 0, 1, 0)]
    assert rows(run(scheduler)) == [(0, 2, 1, 3), (1, 2, 1, 0), (2, 1, 1, 0), (3, 0, 1, 0)]
    batch = run(scheduler)
    assert [(i.num_rows, i.max_nodes) for i in batch.items] == [(1, 3), (1, 0), (1, 0), (1, 0)]


def test_a_running_prefill_is_not_starved_by_drafts() -> None:
    scheduler = make(needs=CHAIN, rows=6, batch=2)
    add(scheduler, 0, prompt=1, max_tokens=30)
    add(scheduler, 1, prompt=6)
    assert rows(run(scheduler)) == [(0, 0, 1, 3), (1, 0, 2, 0)]
    assert rows(run(scheduler)) == [(0, 1, 1, 3), (1, 2, 2, 0)]


def test_batch_size_limits_the_running_requests() -> None:
    scheduler = make(batch=2)
    for id in range(3):
        add(scheduler, id, prompt=2, max_tokens=2)
    assert [r[0] for r in rows(run(scheduler))] == [0, 1]
    assert (scheduler.num_running, scheduler.num_waiting) == (2, 1)
    run(scheduler)
    assert [r[0] for r in rows(run(scheduler))] == [2]


def test_prefix_reuse_skips_rows() -> None:
    scheduler = make()
    add(scheduler, 0, prompt=9, base=5)
    run(scheduler)
    add(scheduler, 1, prompt=9, base=5)
    batch = run(scheduler)
    assert rows(batch) == [(0, 9, 1, 0), (1, 8, 1, 0)]
    assert batch.items[1].is_generation  # the last prompt token is its root


def test_reserves_cover_drafts_and_rollout() -> None:
    scheduler = make(32, 32, 32, needs=PAIR)
    request = add(scheduler, 0, prompt=7)
    run(scheduler)
    scheduler.schedule()
    resources = scheduler._resources
    assert len(resources.target_block_table(request)) == 3  # 8 tokens + 3 nodes
    first, second = (len(cache.block_table(request)) for cache in resources.draft_caches)
    assert (first, second) == (3, 4)  # 8 tokens + 2 slots, + 6


@pytest.mark.parametrize("draft_blocks", [(6,), (6, 32), (32, 7)])
def test_a_full_draft_cache_costs_drafts_not_requests(draft_blocks: tuple[int, ...]) -> None:
    scheduler = make(32, *draft_blocks, needs=PAIR if len(draft_blocks) > 1 else MODEL)
    first = add(scheduler, 0, prompt=8, max_tokens=14)
    second = add(scheduler, 1, prompt=4, max_tokens=14)
    run(scheduler)
    preempted = 0
    dropped = 0
    while not (first.remaining_tokens == 0 or second.remaining_tokens == 0):
        batch = run(scheduler)
        preempted += len(batch.preempted)
        dropped += sum(i.max_nodes == 0 and i.request.remaining_tokens > 1 for i in batch.items)
    assert preempted == 0 and dropped > 0


def test_drafts_are_dropped_before_anyone_is_preempted() -> None:
    # 5 blocks: each request holds 2 (8 rows); the spare one goes to the first's drafts.
    scheduler = make(blocks=5, needs=CHAIN)
    for id in range(2):
        add(scheduler, id, prompt=3, max_tokens=14)
    for _ in range(5):
        run(scheduler)
    batch = run(scheduler)
    assert [i.start for i in batch.items] == [7, 7]
    assert [i.max_nodes for i in batch.items] == [3, 0]
    assert not batch.preempted


def test_the_latest_is_preempted_keeps_its_output_and_comes_back_first() -> None:
    scheduler = make(blocks=6, batch=3)
    first, second = (add(scheduler, id, prompt=8, max_tokens=12) for id in range(2))
    run(scheduler)
    third = add(scheduler, 2, prompt=1, max_tokens=2)
    for _ in range(20):
        batch = run(scheduler)
        if batch.preempted:
            break
    assert batch.preempted == (second,)
    assert second.num_output_tokens > 0
    kept = list(second.tokens)
    assert [i.request for i in batch.items] == [first]  # nobody is admitted in that step
    assert scheduler.waiting == (second, third)
    while first.remaining_tokens:
        batch = run(scheduler)
    assert second.tokens[: len(kept)] == kept
    while scheduler.has_work:
        run(scheduler)
    assert (second.num_output_tokens, third.num_output_tokens) == (12, 2)


def test_the_latest_waits_rather_than_being_its_own_victim() -> None:
    scheduler = make(blocks=5)
    first = add(scheduler, 0, prompt=7, max_tokens=9)
    run(scheduler)
    second = add(scheduler, 1, prompt=6, max_tokens=14)
    waited = 0
    for _ in range(60):
        held = second.id in scheduler._resources.target.committed_lengths()
        batch = run(scheduler)
        assert batch.items
        ids = [i.request.id for i in batch.items]
        waited += held and 1 not in ids and second not in batch.preempted
        if not scheduler.has_work:
            break
    assert waited == 2
    assert (first.num_output_tokens, second.num_output_tokens) == (9, 14)


@pytest.mark.parametrize("draft_blocks", [(5,), (5, 6)])
def test_progress_with_the_smallest_cache_that_fits(draft_blocks: tuple[int, ...]) -> None:
    scheduler = make(5, *draft_blocks, needs=PAIR if len(draft_blocks) > 1 else MODEL, rows=4)
    requests = [add(scheduler, id, prompt=3 + id, max_tokens=10) for id in range(5)]
    steps = 0
    while scheduler.has_work:
        earliest = min(r.id for r in requests if r.remaining_tokens)
        batch = run(scheduler, accept=steps % 3)
        assert batch.items[0].request.id == earliest
        steps += 1
        assert steps < 400
    assert all(r.num_output_tokens == 10 for r in requests)


def test_check_fits_names_both_numbers() -> None:
    scheduler = make(5, 4, needs=MODEL)
    request = Request.create(0, [1] * 10, SamplingParams(max_tokens=6), 0, max_seq_len=64)
    message = r"10 prompt tokens \+ 6 output tokens \+ 2 draft slots = 18 .*draft KV cache holds 16"
    with pytest.raises(RequestError, match=message):
        scheduler.check_fits(request)
    with pytest.raises(RequestError, match="18"):
        scheduler.add(request)
    assert not scheduler.has_work
    scheduler = make(4, 5, needs=MODEL)
    with pytest.raises(RequestError, match=r"3 draft nodes = 19 .*target KV cache holds 16"):
        scheduler.check_fits(request)
    scheduler = make(5, 5, 5, needs=PAIR)
    with pytest.raises(RequestError, match=r"6 draft slots = 22 .*draft 2 KV cache holds 20"):
        scheduler.check_fits(request)
    scheduler = make(max_seq_len=15)
    with pytest.raises(RequestError, match="max_seq_len=15"):
        scheduler.check_fits(request)


def test_abort_running_waiting_and_unknown() -> None:
    scheduler = make(batch=1)
    first, second = (add(scheduler, id, prompt=6) for id in range(2))
    run(scheduler)
    assert scheduler.abort(1) is second and second.finish_reason == "abort"
    assert scheduler.abort(0) is first and first.is_finished
    assert scheduler.abort(0) is None
    assert not scheduler.has_work
    assert scheduler._resources.target.num_free_blocks == 32
    assert not scheduler.schedule().items


def test_prompts_are_checked() -> None:
    with pytest.raises(RequestError, match="empty"):
        Request.create(0, [], SamplingParams(), 0, max_seq_len=8)
    with pytest.raises(RequestError, match=r"8 tokens.*max_seq_len=8"):
        Request.create(0, [1] * 8, SamplingParams(), 0, max_seq_len=8)
    request = Request.create(0, [1] * 7, SamplingParams(), 0, max_seq_len=8)
    assert (request.max_output_tokens, request.remaining_tokens) == (1, 1)
    assert (request.output_tokens, request.num_output_tokens, request.is_finished) == ([], 0, False)


def test_a_step_that_rests_has_no_drafts_and_no_room_for_any() -> None:
    asked: list[int] = []

    def skips_drafts(requests: int) -> bool:
        asked.append(requests)
        return len(asked) % 2 == 1

    scheduler = make(
        32, 32, needs=replace(MODEL, caches=(DraftCacheNeeds(slots=8),)), skips_drafts=skips_drafts
    )
    add(scheduler, 0, 5)
    assert rows(run(scheduler)) == [(0, 0, 5, 0)] and not asked
    add(scheduler, 1, 3)
    free = [cache.num_free_blocks for cache in scheduler._resources.drafts]
    batch = scheduler.schedule()  # the newcomer's prompt is fed all the same
    assert batch.num_waiting == 0
    assert rows(batch) == [(0, 5, 1, 0), (1, 0, 3, 0)] and asked == [1]
    assert scheduler._resources.drafts[0].num_free_blocks == free[0] - 1
    result = StepResult.of([[7], [7]])
    scheduler._resources.extend(batch, result)
    scheduler._resources.commit(batch, result, [[5], [3]])
    assert rows(run(scheduler)) == [(0, 6, 1, 3), (1, 3, 1, 3)] and asked == [1, 2]


def test_a_step_says_how_many_wait() -> None:
    scheduler = make(32, batch=1)
    for id in range(3):
        add(scheduler, id, 5)
    assert scheduler.schedule().num_waiting == 2


@given(
    blocks=st.integers(6, 12),
    arrivals=st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 12), st.integers(1, 2)), min_size=1, max_size=8
    ),
)
@settings(deadline=None)
def test_every_request_begins_once(blocks: int, arrivals: list[tuple[int, int, int]]) -> None:
    """However often it is refused for want of blocks, or preempted and begun again."""
    scheduler = make(blocks, batch=3, rows=8)
    pending = list(arrivals)
    requests: list[Request] = []
    begun: list[int] = []
    steps, wait = 0, 0
    while pending or scheduler.has_work:
        wait = max(wait - 1, 0)
        while pending and not wait:
            wait, prompt, base = pending.pop(0)
            requests.append(add(scheduler, len(requests), prompt, max_tokens=10, base=base))
        if not scheduler.has_work:
            continue
        seen = {request.id for request in requests if request.queue_time is not None}
        batch = run(scheduler)
        items = {item.request.id: item for item in batch.items}
        for item in batch.admitted:
            assert items[item.request.id] is item and item.request.id not in seen
            assert item.request.queue_time is not None and item.request.queue_time >= 0
            assert item.start % 4 == 0 and item.start < item.request.num_prompt_tokens
            begun.append(item.request.id)
        assert {request_id for request_id in items if request_id not in seen} <= set(begun)
        steps += 1
        assert steps < 1000
    assert begun == list(range(len(requests)))
