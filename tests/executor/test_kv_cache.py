"""KVCacheManager: blocks, reuse, eviction."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from trtspec.errors import ConfigError
from trtspec.executor.schedule.kv_cache import KVCacheManager


def manager(num_blocks: int = 8, block_size: int = 4, **options: object) -> KVCacheManager:
    return KVCacheManager(num_blocks, block_size, **options)  # type: ignore[arg-type]


def run(
    cache: KVCacheManager,
    request_id: int,
    tokens: Sequence[int],
    committed: int,
    adapter: int = 0,
) -> int:
    """Begin on whatever is cached, reserve and commit; returns the cached length."""
    cached = cache.match(tokens, adapter)
    cache.begin(request_id, tokens, cached, adapter)
    assert cache.reserve(request_id, committed)
    cache.commit(request_id, tokens, committed)
    cache.check_invariants()
    return cached


def table(cache: KVCacheManager, request_id: int) -> list[int]:
    blocks = cache.block_table(request_id)
    assert blocks.dtype == torch.int32
    return blocks.tolist()


MASK = 2**64 - 1


def key_hash(tokens: Sequence[int]) -> int:
    """The hash of the first block of a text, as the C++ table computes it."""
    state = 0x9E3779B97F4A7C15
    for token in tokens:
        state = (state ^ (state >> 32) ^ (token & MASK)) * 0xD6E8FEB86659FD93 & MASK
    return state ^ (state >> 32)


def colliding(tokens: Sequence[int], first: int) -> list[int]:
    """Tokens of the same hash that begin with `first`: the second makes good what it changes."""
    after = [0x9E3779B97F4A7C15 ^ (0x9E3779B97F4A7C15 >> 32) ^ t for t in (tokens[0], first)]
    after = [state * 0xD6E8FEB86659FD93 & MASK for state in after]
    right, wrong = (state ^ (state >> 32) for state in after)
    second = (tokens[1] ^ right ^ wrong) & MASK
    return [first, second - 2**64 if second >= 2**63 else second, *tokens[2:]]


def test_reserve_is_all_or_nothing_and_counts_what_is_held() -> None:
    cache = manager(num_blocks=3)
    cache.begin(1, [5, 6], 0)
    assert cache.reserve(1, 5) and len(cache.block_table(1)) == 2
    assert cache.reserve(1, 8) and len(cache.block_table(1)) == 2  # covered already
    assert cache.reserve(1, 1) and len(cache.block_table(1)) == 2  # never shrinks
    assert cache.room(1) == 12
    assert not cache.reserve(1, 13)
    assert (len(cache.block_table(1)), cache.num_free_blocks) == (2, 1)
    cache.check_invariants()


def test_slots_follow_the_block_table() -> None:
    cache = manager()
    cache.begin(1, [1], 0)
    cache.begin(2, [2], 0)
    assert cache.reserve(1, 3) and cache.reserve(2, 3) and cache.reserve(1, 6)
    assert table(cache, 1) == [0, 2]
    slots = cache.slots(1, [0, 3, 4, 7, 1])
    assert slots.dtype == torch.int64 and slots.tolist() == [0, 3, 8, 11, 1]
    with pytest.raises(RuntimeError, match="no block for that position"):
        cache.slots(1, [0, 8])


def test_a_request_must_have_begun() -> None:
    cache = manager()
    cache.begin(1, [1], 0)
    with pytest.raises(RuntimeError, match="request 1 has begun already"):
        cache.begin(1, [1], 0)
    cache.free(1)
    for call in (cache.committed, cache.room, cache.block_table, cache.free):
        with pytest.raises(RuntimeError, match="request 1 has not begun"):
            call(1)
    with pytest.raises(RuntimeError, match="request 1 has not begun"):
        cache.commit(1, [1], 0)


def test_commit_returns_surplus_blocks() -> None:
    cache = manager()
    cache.begin(1, [1], 0)
    cache.reserve(1, 20)
    cache.commit(1, [1, 2, 3, 4, 5], 4)
    assert len(cache.block_table(1)) == 1
    assert (cache.num_free_blocks, cache.committed(1)) == (7, 4)
    assert cache.committed_lengths() == {1: 4}


def test_commit_is_checked() -> None:
    cache = manager()
    cache.begin(1, [1], 0)
    cache.reserve(1, 4)
    with pytest.raises(RuntimeError, match="beyond the reserved"):
        cache.commit(1, list(range(9)), 5)
    with pytest.raises(RuntimeError, match="not verified"):
        cache.commit(1, [1, 2], 3)
    cache.commit(1, [1, 2], 2)
    with pytest.raises(RuntimeError, match="cannot commit backwards"):
        cache.commit(1, [1, 2], 1)


def test_a_prefix_is_shared_and_the_last_token_is_always_computed() -> None:
    cache = manager()
    tokens = list(range(10))
    run(cache, 1, tokens, 8)
    assert cache.match(tokens) == 8
    assert cache.match(tokens[:8]) == 4  # the 8th token's row must be computed
    assert cache.match([*tokens[:7], 99, 1]) == 4
    assert cache.match([99, *tokens[1:]]) == 0
    cache.begin(2, tokens, 8)
    assert table(cache, 2) == table(cache, 1)
    assert cache.reserve(2, 10)
    assert table(cache, 2)[:2] == table(cache, 1)
    cache.check_invariants()
    cache.free(1)
    assert cache.match(tokens) == 8
    cache.free(2)
    assert cache.num_free_blocks == 8


def test_begin_may_take_less_than_the_match() -> None:
    cache = manager()
    tokens = list(range(10))
    run(cache, 1, tokens, 8)
    cache.begin(2, tokens, 4)
    assert (cache.committed(2), table(cache, 2)) == (4, table(cache, 1)[:1])
    with pytest.raises(RuntimeError, match="cached prefix"):
        cache.begin(3, tokens, 12)


def test_blocks_of_rejected_or_unverified_rows_are_never_found() -> None:
    cache = manager()
    cache.begin(1, [1, 2, 3], 0)
    cache.reserve(1, 16)
    cache.commit(1, [1, 2, 3, 4, 5, 6, 7, 8, 9], 7)  # row 7 holds a rejected draft
    assert cache.match(list(range(1, 10))) == 4


def test_equal_blocks_in_another_place_are_not_confused() -> None:
    cache = manager()
    run(cache, 1, [1, 1, 1, 1, 2, 2, 2, 2, 0], 8)
    assert cache.match([2, 2, 2, 2, 0]) == 0
    assert cache.match([1, 1, 1, 1, 1, 1, 1, 1, 0]) == 4


def test_hash_collisions_do_not_join_prefixes() -> None:
    # Blocks whose hashes are equal by construction; stored tokens tell them apart.
    one, other = [1, 2, 3, 4], colliding([1, 2, 3, 4], first=9)
    assert key_hash(one) == key_hash(other) and one != other
    cache = manager()
    run(cache, 1, one + [7] * 5, 8)
    assert cache.match(other + [7] * 5) == 0
    run(cache, 2, other + [7] * 5, 8)
    assert cache.match(one + [7] * 5) == 8
    cache.begin(3, one + [7] * 5, 8)
    assert table(cache, 3) == table(cache, 1)


def test_the_first_of_two_equal_blocks_stays_in_the_table() -> None:
    cache = manager()
    tokens = list(range(9))
    cache.begin(1, tokens, 0)
    cache.begin(2, tokens, 0)
    for request_id in (1, 2):
        assert cache.reserve(request_id, 8)
        cache.commit(request_id, tokens, 8)
    assert set(table(cache, 1)).isdisjoint(table(cache, 2))
    cache.begin(3, tokens, 8)
    assert table(cache, 3) == table(cache, 1)
    cache.free(2)
    cache.check_invariants()
    assert cache.num_free_blocks == 6
    # The copy's successor is found through the first one's prefix.
    run(cache, 4, [*tokens[:8], 50, 51, 52, 53, 54], 12)
    assert cache.match([*tokens[:8], 50, 51, 52, 53, 54]) == 12


def test_eviction_takes_the_least_recently_used_and_deepest_first() -> None:
    cache = manager(num_blocks=4)
    old, new = [1] * 9, [2] * 9
    run(cache, 1, old, 8)
    run(cache, 2, new, 8)
    cache.free(1)
    cache.free(2)
    cache.begin(3, [3], 0)
    assert cache.reserve(3, 4)
    assert (cache.match(old), cache.match(new)) == (4, 8)  # the deep block of the older one went
    assert cache.reserve(3, 12)
    assert (cache.match(old), cache.match(new)) == (0, 4)
    cache.check_invariants()
    assert not cache.reserve(3, 17)


def test_using_a_prefix_makes_it_recent_and_protects_it() -> None:
    cache = manager(num_blocks=4)
    old, new = [1] * 9, [2] * 9
    for request_id, tokens in ((1, old), (2, new)):
        run(cache, request_id, tokens, 8)
    cache.free(1)
    cache.free(2)
    cache.begin(3, old, 8)
    cache.begin(4, [4], 0)
    assert not cache.reserve(4, 12)
    assert cache.reserve(4, 8)
    assert (cache.match(old), cache.match(new)) == (8, 0)
    cache.check_invariants()


def test_without_reuse_nothing_is_found() -> None:
    cache = manager(enable_reuse=False)
    tokens = list(range(9))
    assert run(cache, 1, tokens, 8) == 0
    cache.free(1)
    assert cache.match(tokens) == 0
    assert cache.num_free_blocks == 8
    cache.check_invariants()


def test_lookahead_blocks_depend_on_the_next_token() -> None:
    cache = manager(lookahead=1)
    run(cache, 1, [1, 2, 3, 4], 4)
    assert cache.match([1, 2, 3, 4, 5, 6]) == 0  # its next token is not known yet
    cache.commit(1, [1, 2, 3, 4, 5], 4)
    assert cache.match([1, 2, 3, 4, 5, 6]) == 4
    assert cache.match([1, 2, 3, 4, 9, 6]) == 0
    assert cache.match([1, 2, 3, 4]) == 0
    assert cache.match([1, 2, 3, 4, 5]) == 4
    cache.check_invariants()


def test_blocks_behind_the_window_are_let_go() -> None:
    """Those that the next row, at 20, does not see: it sees 14 to 20, in blocks 3 to 5."""
    text = list(range(100, 130))
    cache = manager(num_blocks=8, window=7)
    run(cache, 1, text, 20)
    assert table(cache, 1) == [-1, -1, -1, 3, 4]
    assert cache.num_free_blocks == 6 and cache.room(1) == 4 * (5 + 6)
    assert cache.slots(1, [12, 19]).tolist() == [12, 19]
    with pytest.raises(RuntimeError, match="has no block for that position"):
        cache.slots(1, [11])
    # They stay cached: a text that begins alike holds of its prefix only what its next row sees.
    assert run(cache, 2, [*text[:16], 7, 7], 16) == 16
    assert table(cache, 2) == [-1, -1, 2, 3]
    cache.free(1)
    cache.free(2)
    assert cache.num_free_blocks == 8 and cache.match(text) == 20
    cache.check_invariants()


def test_reuse_ends_where_a_block_behind_the_window_was_evicted() -> None:
    text = list(range(100, 130))
    cache = manager(num_blocks=6, window=7)
    run(cache, 1, text, 20)
    assert cache.reserve(1, 28)  # takes the free block, and the oldest cached one: the first
    assert cache.match(text) == 0
    cache.commit(1, text, 28)
    assert table(cache, 1).count(-1) == 5
    cache.check_invariants()


def test_a_long_text_needs_few_blocks_behind_a_window() -> None:
    """Fed four rows at a time, without reuse and with it."""
    text = list(range(400))
    for reuse in (True, False):
        cache = manager(num_blocks=5, window=7, enable_reuse=reuse)
        assert cache.rows_held(400, 4) == 23 and cache.rows_held(9, 4) == 9
        cache.begin(1, text, 0)
        for rows in range(4, 401, 4):
            assert cache.reserve(1, rows)
            cache.commit(1, text, rows)
            cache.check_invariants()
        assert sum(block >= 0 for block in table(cache, 1)) <= 3


def test_sinks_are_kept() -> None:
    """Beside the window of the next row, at 20, which sees 14 to 20."""
    text = list(range(100, 130))
    cache = manager(num_blocks=8, window=7, sinks=1)
    run(cache, 1, text, 20)
    assert table(cache, 1) == [0, -1, -1, 3, 4]
    assert cache.num_free_blocks == 5 and cache.rows_held(400, 4) == 27
    assert run(cache, 2, [*text[:16], 7, 7], 16) == 16
    assert table(cache, 2) == [0, -1, 2, 3]
    cache.free(1)
    cache.free(2)
    assert cache.num_free_blocks == 8 and cache.match(text) == 20
    cache.check_invariants()


@pytest.mark.parametrize(
    ("num_blocks", "block_size", "lookahead", "name"),
    [(0, 4, 0, "num_blocks=0"), (4, 0, 0, "block_size=0"), (4, 4, -1, "lookahead=-1")],
)
def test_bad_sizes_are_refused(num_blocks: int, block_size: int, lookahead: int, name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        KVCacheManager(num_blocks, block_size, True, lookahead=lookahead)


def test_a_text_is_found_under_its_own_adapter_alone() -> None:
    cache = manager(num_blocks=16)
    text = [0] * 9  # tokens that a weak hash would lose
    assert [run(cache, i, text, 8, adapter) for i, adapter in enumerate((0, 1, 2))] == [0, 0, 0]
    assert [run(cache, 10 + i, text, 8, adapter) for i, adapter in enumerate((2, 0, 1))] == [8] * 3
    assert [table(cache, 10 + i) for i in range(3)] == [table(cache, i) for i in (2, 0, 1)]
    assert cache.match(text, 3) == 0


def test_what_lies_behind_a_gap_is_found_under_its_own_adapter_alone() -> None:
    """In a draft's cache, which lacks the rows before."""
    cache = manager(num_blocks=16)
    text = [0] * 17
    for request_id, adapter in enumerate((0, 1)):
        cache.begin_behind(request_id, text, 8, adapter)
        assert cache.absent(request_id) == 8
        assert cache.reserve(request_id, 8)
        cache.commit(request_id, text[:16], 8)
    for request_id, adapter in ((10, 1), (11, 0), (12, 2)):
        cache.begin_behind(request_id, text, 16, adapter)
        assert cache.absent(request_id) == (16 if adapter == 2 else 8)
    assert table(cache, 10) == table(cache, 1) != table(cache, 11)
