"""ResourceManager: both caches or neither."""

from __future__ import annotations

import pytest

from trtspec.config.sampling import SamplingParams
from trtspec.executor.kv_cache import KVCacheManager
from trtspec.executor.request import Request
from trtspec.executor.resources import ResourceManager


def request(id: int, tokens: list[int]) -> Request:
    return Request.create(id, tokens, SamplingParams(max_tokens=8), 0, max_seq_len=64)


def pair(target: int = 8, draft: int = 8, draft_block: int = 4) -> ResourceManager:
    return ResourceManager(KVCacheManager(target, 4), KVCacheManager(draft, draft_block))


def commit(resources: ResourceManager, r: Request, target: int, draft: int) -> None:
    assert resources.reserve(r, target, draft)
    resources.commit(r, target, draft)
    resources.check_invariants()


def test_reserve_changes_both_or_neither() -> None:
    resources = pair(target=8, draft=2)
    r = request(0, [1, 2, 3])
    resources.begin(r)
    assert not resources.reserve(r, 4, 9)  # the draft lacks room
    assert len(resources.target_block_table(r)) == len(resources.draft_block_table(r)) == 0
    resources = pair(target=2, draft=8)
    resources.begin(r)
    assert not resources.reserve(r, 9, 4)  # the target lacks room
    assert len(resources.target_block_table(r)) == len(resources.draft_block_table(r)) == 0
    assert resources.reserve(r, 8, 4)
    assert (len(resources.target_block_table(r)), len(resources.draft_block_table(r))) == (2, 1)
    assert (resources.room(r), resources.target_room(r)) == (8, 8)
    resources.check_invariants()


def test_a_refused_reserve_evicts_nothing() -> None:
    resources = pair(target=2, draft=1)
    old = request(0, [1, 2, 3, 4, 5])
    resources.begin(old)
    commit(resources, old, 4, 0)
    resources.free(old)
    new = request(1, [9, 9, 9])
    resources.begin(new)
    assert not resources.reserve(new, 8, 8)
    assert resources.target.match(old.tokens) == 4


@pytest.mark.parametrize("draft_committed", [0, 3, 4, 7, 8])
def test_reuse_counts_only_what_both_caches_hold(draft_committed: int) -> None:
    resources = pair()
    first = request(0, list(range(9)))
    assert resources.begin(first) == 0
    commit(resources, first, 8, draft_committed)
    second = request(1, list(range(10)))
    assert resources.begin(second) == draft_committed // 4 * 4
    assert resources.target_committed(second) == resources.draft_committed(second)
    resources.check_invariants()


def test_reuse_ends_on_a_border_of_both_block_sizes() -> None:
    resources = pair(draft=16, draft_block=3)
    first = request(0, list(range(30)))
    resources.begin(first)
    commit(resources, first, 29, 29)
    assert resources.begin(request(1, list(range(30)))) == 24  # of 28 and 27


def test_the_draft_is_never_ahead_of_the_target() -> None:
    resources = pair()
    r = request(0, [1, 2, 3, 4])
    resources.begin(r)
    assert resources.reserve(r, 4, 4)
    with pytest.raises(AssertionError, match="ahead"):
        resources.commit(r, 2, 3)
    resources.commit(r, 3, 2)
    assert (resources.target_committed(r), resources.draft_committed(r)) == (3, 2)


def test_rewind_moves_both() -> None:
    resources = pair()
    r = request(0, list(range(10)))
    resources.begin(r)
    commit(resources, r, 9, 7)
    assert resources.rewind(r, 8) == 8
    assert resources.draft_committed(r) == 7
    assert resources.rewind(r, 5) == 5
    assert resources.draft_committed(r) == 5
    resources.check_invariants()


def test_rewind_keeps_the_draft_behind_a_target_that_falls_further() -> None:
    resources = pair()
    first = request(0, list(range(9)))
    resources.begin(first)
    commit(resources, first, 8, 8)
    second = request(1, list(range(9)))
    assert resources.begin(second) == 8
    resources.draft.free(0)  # type: ignore[union-attr]
    resources.draft.begin(0, [], 0)  # type: ignore[union-attr]
    assert resources.rewind(second, 6) == 4  # shared in the target alone
    assert resources.draft_committed(second) == 4
    resources.check_invariants()


def test_free_returns_both() -> None:
    resources = pair()
    r = request(0, list(range(10)))
    resources.begin(r)
    assert resources.reserve(r, 12, 16)
    resources.free(r)
    resources.check_invariants()
    assert resources.target.num_free_blocks == 8
    assert resources.draft is not None and resources.draft.num_free_blocks == 8


def test_without_a_draft_cache_its_lengths_are_ignored() -> None:
    resources = ResourceManager(KVCacheManager(4, 4))
    r = request(0, list(range(10)))
    assert resources.begin(r) == 0
    assert resources.reserve(r, 10, 10**6)
    resources.commit(r, 9, 9)
    assert (resources.target_committed(r), resources.draft_committed(r)) == (9, 0)
    assert resources.rewind(r, 3) == 3
    resources.check_invariants()
    resources.free(r)
    assert resources.target.num_free_blocks == 4
