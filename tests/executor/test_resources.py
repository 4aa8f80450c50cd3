"""ResourceManager: all caches or none."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from trtspec.config.sampling import SamplingParams
from trtspec.errors import ConfigError
from trtspec.executor.schedule.kv_cache import KVCacheManager
from trtspec.executor.schedule.resources import ResourceManager
from trtspec.executor.step.request import Request
from trtspec.executor.step.step_plan import ScheduledRequest, StepPlan
from trtspec.executor.step.step_result import StepResult
from trtspec.ops.kv_cache import StateSizes

from .one_step import commit_rows


def request(id: int, tokens: list[int]) -> Request:
    return Request.create(id, tokens, SamplingParams(max_tokens=8), 0, max_seq_len=64)


def make(target: int = 8, drafts: Sequence[int] = (8,), block: int = 4) -> ResourceManager:
    """Caches of that many blocks; the last draft's blocks hold ``block`` rows, others' 4."""
    sizes = [4] * (len(drafts) - 1) + [block]
    managers = [KVCacheManager(n, size) for n, size in zip(drafts, sizes, strict=True)]
    return ResourceManager(KVCacheManager(target, 4), managers)


def tables(resources: ResourceManager, r: Request) -> list[int]:
    """How many blocks the request holds in each cache."""
    drafts = [len(cache.block_table(r)) for cache in resources.draft_caches]
    return [len(resources.target_block_table(r)), *drafts]


def lengths(resources: ResourceManager, r: Request) -> list[int]:
    drafts = [cache.committed(r) for cache in resources.draft_caches]
    return [resources.target_committed(r), *drafts]


def commit(resources: ResourceManager, r: Request, target: int, *drafts: int) -> None:
    assert resources.reserve(r, target, drafts)
    commit_rows(resources, [r], [target], [drafts])
    resources.check_invariants()


@pytest.mark.parametrize("blocks", [(8, 2, 8), (8, 8, 2), (2, 8, 8)])
def test_reserve_changes_all_or_none(blocks: tuple[int, ...]) -> None:
    resources = make(blocks[0], blocks[1:])
    r = request(0, [1, 2, 3])
    resources.begin(r)
    assert not resources.reserve(r, 9, (9, 9))
    assert tables(resources, r) == [0, 0, 0]
    asked = [min(4 * n, 12) for n in blocks]
    assert resources.reserve(r, asked[0], asked[1:])
    assert tables(resources, r) == [rows // 4 for rows in asked]
    assert (resources.room(r), resources.target_room(r)) == (8, 4 * blocks[0])
    assert resources.reserve(r, 4 * blocks[0])  # no more of the drafts
    assert tables(resources, r) == [blocks[0], asked[1] // 4, asked[2] // 4]
    resources.check_invariants()


def test_every_draft_cache_is_asked() -> None:
    resources = make(8, (8, 8))
    r = request(0, [1, 2, 3])
    resources.begin(r)
    with pytest.raises(ValueError, match="1 lengths, but there are 2 draft KV caches"):
        resources.reserve(r, 4, (4,))


def test_a_refused_reserve_evicts_nothing() -> None:
    resources = make(2, (2, 1))
    old = request(0, [1, 2, 3, 4, 5])
    resources.begin(old)
    commit(resources, old, 4, 4, 0)
    resources.free(old)
    new = request(1, [9, 9, 9])
    resources.begin(new)
    assert not resources.reserve(new, 8, (8, 8))
    assert resources.target.match(old.tokens) == resources.drafts[0].match(old.tokens) == 4


@pytest.mark.parametrize("drafts", [(0, 8), (8, 0), (3, 8), (4, 8), (8, 7), (8, 8), (8,), ()])
def test_no_draft_shortens_what_the_target_holds(drafts: tuple[int, ...]) -> None:
    resources = make(8, [8] * len(drafts)) if drafts else ResourceManager(KVCacheManager(8, 4))
    first = request(0, list(range(9)))
    assert resources.begin(first) == 0
    commit(resources, first, 8, *drafts)
    second = request(1, list(range(10)))
    assert resources.begin(second) == 8
    assert set(lengths(resources, second)) == {8}
    absent = [8 - held // 4 * 4 for held in drafts]
    assert [cache.absent(second) for cache in resources.draft_caches] == absent
    rows = [manager.committed(1) for manager in resources.drafts]
    assert rows == [held // 4 * 4 for held in drafts]
    commit(resources, second, 9, *[9] * len(drafts))
    assert set(lengths(resources, second)) == {9}


def test_rows_lie_directly_behind_those_that_are_held() -> None:
    resources = make()
    first = request(0, list(range(13)))
    resources.begin(first)
    commit(resources, first, 12, 5)
    second, (cache,) = request(1, list(range(13))), resources.draft_caches
    assert resources.begin(second) == 12
    assert resources.reserve(second, 13, (13,))
    rows = cache.rows(second, 12, [7])
    assert (rows.tokens, rows.context) == ([7], 4)
    assert rows.blocks.tolist()[0] == cache.block_table(first).tolist()[0]
    assert len(rows.blocks) == 2  # 4 rows are held, 8 tokens absent, and one is fed


def test_what_follows_absent_tokens_is_found_again() -> None:
    """A chat that grows, of which a draft saw nothing at first, and a prompt that parts from it."""
    resources = make(32, (32,))
    chat, absent, cached = list(range(9)), [], []
    for id in range(5):
        turn = request(id, chat)
        cached.append(resources.begin(turn))
        absent.append(resources.draft_caches[0].absent(turn))
        turn.tokens.extend([100 + id] * 8)
        chat = list(turn.tokens)
        drafted = cached[-1] if id == 0 else len(chat) - 1
        commit(resources, turn, len(chat) - 1, drafted)
        resources.free(turn)
    assert cached == [0, 16, 24, 32, 40]
    assert absent == [0, 16, 16, 16, 16]
    other = request(9, [*range(8), *[55] * 20])
    assert resources.begin(other) == 8
    assert resources.draft_caches[0].absent(other) == 8


def test_absent_texts_of_other_lengths_are_not_confused() -> None:
    """Such as begin with token 1, of which the first hash was made, and go on with token 0."""
    cache = KVCacheManager(8, 1, lookahead=1)
    first, other = [1, 0, 5, 6, 7], [1, 0, 0, 5, 6, 7]
    cache.begin_behind(0, first, 2)
    assert cache.reserve(0, 2)
    cache.commit(0, first, 2)
    cache.begin_behind(1, first, 4)
    assert (cache.committed(1), cache.absent(1)) == (2, 2)
    cache.begin_behind(2, other, 5)
    assert (cache.committed(2), cache.absent(2)) == (0, 5)


@pytest.mark.parametrize("drafts", [(0, 8), (8, 0), (3, 7), (8, 8)])
def test_a_draft_that_can_catch_up_begins_on_what_it_holds(drafts: tuple[int, int]) -> None:
    caches = [KVCacheManager(8, 4), KVCacheManager(8, 3)]
    resources = ResourceManager(KVCacheManager(8, 4), caches, [False, True])
    first = request(0, list(range(9)))
    resources.begin(first)
    commit(resources, first, 8, *drafts)
    second = request(1, list(range(10)))
    assert resources.begin(second) == 8
    assert lengths(resources, second) == [8, 8, drafts[1] // 3 * 3]
    assert resources.draft_caches[1].absent(second) == 0
    resources.check_invariants()


@pytest.mark.parametrize(("blocks", "absent"), [(8, 0), (2, 4)])
def test_a_draft_with_a_window_catches_up_where_it_has_room(blocks: int, absent: int) -> None:
    caches = [KVCacheManager(blocks, 4, window=3)]
    resources = ResourceManager(KVCacheManager(8, 4), caches, [True])
    first = request(0, list(range(9)))
    resources.begin(first)
    commit(resources, first, 8, 4)
    second = request(1, list(range(10)))
    assert resources.begin(second) == 8
    assert lengths(resources, second) == [8, 8 if absent else 4]
    assert resources.draft_caches[0].absent(second) == absent
    resources.check_invariants()


def test_blocks_of_other_sizes() -> None:
    resources = make(drafts=(8, 16), block=3)
    first = request(0, list(range(30)))
    resources.begin(first)
    commit(resources, first, 29, 29, 29)
    second = request(1, list(range(30)))
    assert resources.begin(second) == 28
    assert [cache.absent(second) for cache in resources.draft_caches] == [0, 1]
    resources.free(first)
    commit(resources, second, 30, 30, 30)


def test_no_draft_is_ever_ahead_of_the_target() -> None:
    resources = make(drafts=(8, 8))
    r = request(0, [1, 2, 3, 4])
    resources.begin(r)
    assert resources.reserve(r, 4, (4, 4))
    with pytest.raises(RuntimeError, match="ahead"):
        commit_rows(resources, [r], [2], [(2, 3)])
    commit_rows(resources, [r], [3], [(2, 3)])
    assert lengths(resources, r) == [3, 2, 3]


def test_free_returns_all() -> None:
    resources = make(drafts=(8, 6))
    r = request(0, list(range(10)))
    resources.begin(r)
    assert resources.reserve(r, 12, (16, 20))
    assert resources.usage == 5 / 6
    resources.free(r)
    resources.check_invariants()
    assert [manager.num_free_blocks for manager in resources.all] == [8, 8, 6]
    assert resources.usage == 0


def test_without_a_draft_cache() -> None:
    resources = ResourceManager(KVCacheManager(4, 4))
    r = request(0, list(range(10)))
    assert resources.begin(r) == 0
    assert resources.reserve(r, 10, ())
    commit_rows(resources, [r], [9])
    assert lengths(resources, r) == [9]
    resources.check_invariants()
    resources.free(r)
    assert resources.target.num_free_blocks == 4


def test_one_call_commits_all_requests() -> None:
    resources = make(drafts=(8, 8))
    requests = [request(id, [id, 2, 3, 4]) for id in range(3)]
    for r in requests:
        resources.begin(r)
        assert resources.reserve(r, 6, (6, 6))
        r.tokens.extend([7] * r.id)  # emitted: none, one, two
    commit_rows(resources, requests, [4, 5, 6], [(4, 4), (5, 0), (1, 6)])
    assert [lengths(resources, r) for r in requests] == [[4, 4, 4], [5, 5, 0], [6, 1, 6]]
    assert resources.target.match([2, 2, 3, 4, 7, 7]) == 4  # what was committed can be found
    assert resources.target.match([2, 2, 3, 5, 7, 7]) == 0
    resources.check_invariants()


@pytest.mark.parametrize("drafts", [[()], [(1,)], [(1,), (1, 1)]])
def test_a_commit_needs_a_length_of_each(drafts: list[tuple[int, ...]]) -> None:
    resources = make()
    requests = [request(id, [1, 2, 3]) for id in range(2)]
    for r in requests:
        resources.begin(r)
    with pytest.raises(RuntimeError, match="lengths of draft KV caches for a plan that has 2"):
        commit_rows(resources, requests, [1, 1], drafts)


def test_a_step_extends_texts_and_says_which_rows_are_to_be_moved() -> None:
    resources = ResourceManager(KVCacheManager(8, 4))
    requests = [request(id, [1, 2, 3]) for id in range(4)]
    for r in requests:
        resources.begin(r)
        assert resources.reserve(r, 8)
    # Blocks 0 and 1 of 4 rows are the first's, 2 and 3 the second's, and so on.
    plan = StepPlan(
        (
            ScheduledRequest(requests[0], 2, 1, True, 5, True),
            ScheduledRequest(requests[1], 0, 1, True, 5, True),
            ScheduledRequest(requests[2], 0, 2, False, 0, False),
            ScheduledRequest(requests[3], 0, 3, False, 0, True),
        )
    )
    result = StepResult([0, 3, 6, 6, 6], [*range(10, 16)], [0, 2, 5, 0, 1, 4], [None] * 4)
    result.ends[3] = "error"
    source, place = resources.extend(plan, result)
    assert source.tolist() == [4, 7, 12] and place.tolist() == [3, 4, 10]
    texts = [1, 2, 3, 10, 11, 12], [1, 2, 3, 13, 14, 15], [1, 2, 3], [1, 2, 3]
    assert [list(r.tokens) for r in requests] == list(map(list, texts))
    resources.commit(plan, result, [()] * 4)
    assert [lengths(resources, r) for r in requests] == [[5], [3], [2], [0]]
    resources.check_invariants()
    assert resources.target.match([1, 2, 3, 10, 11, 12, 13]) == 4  # by the tokens emitted

    in_place = StepResult.of([(7, 8)])
    assert resources.extend(StepPlan(plan.items[2:3]), in_place) == []
    with pytest.raises(RuntimeError, match="no block for that position"):
        resources.extend(StepPlan(plan.items[:1]), StepResult([0, 2], [7, 8], [0, 6], [None]))
    with pytest.raises(RuntimeError, match="1 results for a plan that has 4"):
        resources.extend(plan, in_place)


def test_what_a_draft_cache_says_follows_every_move() -> None:
    resources = make()
    r, (cache,) = request(0, [1, 2, 3]), resources.draft_caches
    resources.begin(r)
    assert resources.reserve(r, 3, (3,))
    resources.know([0], [2], [1], [resources.target_block_table(r)])
    assert (cache.committed(r), cache.absent(r)) == (2, 1)  # as it was told
    commit_rows(resources, [r], [3], [(3,)])
    assert (cache.committed(r), cache.absent(r)) == (3, 0)
    resources.know([0], [2], [1], [resources.target_block_table(r)])
    assert resources.reserve(r, 9, (9,))
    assert cache.committed(r) == 3 and len(cache.block_table(r)) == 3


def with_states(target: int, states: StateSizes) -> ResourceManager:
    return ResourceManager(KVCacheManager(target, 4, states=states), [KVCacheManager(8, 4)])


def test_states_are_reserved_with_the_caches_or_not_at_all() -> None:
    resources = with_states(8, StateSizes(1))
    first, second = request(0, list(range(9))), request(1, [7, 8])
    resources.begin(first)
    commit(resources, first, 8, 8)
    assert resources.begin(second) == 0
    assert resources.room(second) == resources.target_room(second) == 0
    assert not resources.reserve(second, 4, (4,))  # there are blocks, but no state
    assert tables(resources, second) == [0, 0]
    resources.check_invariants()
    resources.free(first)
    assert resources.reserve(second, 4, (4,))
    assert resources.target.state(1) == 0
    resources.free(second)
    resources.check_invariants()


def test_a_refusal_of_blocks_takes_no_state() -> None:
    resources = with_states(2, StateSizes(1))
    r = request(0, [1, 2, 3])
    resources.begin(r)
    assert not resources.reserve(r, 9, (9,))
    assert resources.target.state(0) == -1
    resources.check_invariants()


def test_a_prefix_is_found_as_far_as_a_snapshot() -> None:
    resources = with_states(8, StateSizes(2, 1, blocks_apart=2))
    first, second = request(0, list(range(13))), request(1, list(range(13)))
    resources.begin(first)
    assert resources.reserve(first, 12, (12,))
    assert resources.target.keep(0, 0, 7) == (-1, 0)  # no border is passed
    assert resources.target.keep(0, 7, 9) == resources.target.keep(0, 7, 8) == (2, 8)
    assert resources.target.keep(0, 12, 20) == (-1, 0)  # the only one is held
    commit(resources, first, 12, 12)
    assert resources.begin(second) == 8
    assert resources.target.source(1) == 2
    assert lengths(resources, second) == [8, 8]
    resources.free(second)
    resources.free(first)
    resources.check_invariants()


def test_a_snapshot_goes_with_its_block() -> None:
    resources = with_states(3, StateSizes(1, 2, blocks_apart=1))
    old, new = request(0, list(range(5))), request(1, [9] * 12)
    resources.begin(old)
    assert resources.reserve(old, 4, (4,))
    assert resources.target.keep(0, 0, 4) == (1, 4)
    commit(resources, old, 4, 4)
    resources.free(old)
    assert resources.target.match(old.tokens) == 4
    resources.begin(new)
    assert resources.reserve(new, 12, ())
    assert resources.target.match(old.tokens) == 0
    assert [resources.target.keep(1, rows, rows + 4) for rows in (0, 4, 8)] == [
        (1, 4), (2, 8), (-1, 0),
    ]  # fmt: skip
    resources.check_invariants()
    resources.free(new)  # what it held goes back
    resources.check_invariants()


def test_states_that_cannot_be_are_refused() -> None:
    for sizes in (StateSizes(-1), StateSizes(0, 1, 1), StateSizes(1, 1, 0)):
        with pytest.raises(ConfigError, match=r"snapshots .* blocks apart cannot be"):
            KVCacheManager(8, 4, states=sizes)
