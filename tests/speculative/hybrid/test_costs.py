"""What calls take, by their rows, on machines that change their speed."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from trtspec.executor.engines.counted_engine import CountedEngine
from trtspec.speculative.hybrid.costs import PROFILE_SECONDS, CostTable

ENGINE = CountedEngine(torch.device("cpu"))


def linear(size: int) -> float:
    return 2e-3 + 1e-4 * size


def profiled(largest: int = 48) -> CostTable:
    table = CostTable()
    table.profile(linear, largest, ENGINE)
    return table


def test_a_profile_is_read_between_and_beyond_its_points() -> None:
    table = profiled()
    for size in (1, 5, 7, 40, 48, 100):
        assert table.at(1, size) == pytest.approx(linear(size))
    assert table.run(1, 1, 8) == pytest.approx(list(map(linear, range(1, 9))))
    assert CostTable().at(1, 3) == 0.0


def test_profiling_takes_no_longer_than_it_may() -> None:
    calls: list[int] = []

    def slow(size: int) -> float:
        calls.append(size)
        return 0.1 * size

    table = CostTable()
    table.profile(slow, 1024, ENGINE)
    assert sum(calls) * 0.1 <= 0.01 + PROFILE_SECONDS + 0.1 * (2 * calls[-1] + 4), (
        "and the first calls"
    )
    assert table.at(1, 64) == pytest.approx(6.4), "the last slope goes on"
    unable = CostTable()
    unable.profile(lambda size: None, 8, ENGINE)
    assert unable.at(1, 1) == 0.0


def test_calls_that_set_things_up_are_no_profile() -> None:
    first = iter([2.0, 0.9, 0.3])
    table = CostTable()
    table.profile(lambda size: next(first, linear(size)), 8, ENGINE)
    for size in (1, 4, 8):
        assert table.at(1, size) == pytest.approx(linear(size))


def test_a_busy_moment_spoils_no_profile() -> None:
    calls = 0

    def timed(size: int) -> float:
        nonlocal calls
        calls += 1
        return linear(size) * (10 if 5 < calls < 22 else 1)  # two rounds, nearly

    table = CostTable()
    table.profile(timed, 16, ENGINE)
    assert [table.at(1, size) for size in (1, 4, 16)] == pytest.approx([2.1e-3, 2.4e-3, 3.6e-3])


def test_what_is_seen_soon_outweighs_a_wrong_profile() -> None:
    """Measured while the machine did something else: too slow, and in part."""
    for wrong in (lambda size: 20 * linear(size), lambda size: 0.1 if size < 3 else linear(size)):
        table, rng = CostTable(), random.Random(3)
        table.profile(wrong, 96, ENGINE)
        for _ in range(60):
            size = rng.choice((1, 16, 80, 96))
            table.observe(linear(size) * rng.uniform(0.95, 1.05), 1, size)
        now = [table.at(1, size) * table.speed.value for size in (1, 16, 80, 96)]
        assert now == pytest.approx([linear(size) for size in (1, 16, 80, 96)], rel=0.15)


def test_one_factor_follows_the_machine() -> None:
    """Sizes without recent calls are rated by the present speed too; what pays stays the same."""
    for factor in (0.8, 1.3, 3.0):
        table = profiled()
        for _ in range(40):
            table.observe(factor * linear(8), 1, 8)
        for size in (8, 24, 48):
            assert table.at(1, size) == pytest.approx(linear(size), rel=0.1)
        assert table.speed.value == pytest.approx(factor, rel=0.1)


def test_a_pause_is_not_a_cost() -> None:
    table = profiled()
    for _ in range(30):
        table.observe(linear(8), 1, 8)
    table.observe(100 * linear(8), 1, 8)
    assert table.at(1, 8) * table.speed.value < 1.3 * linear(8)


def test_calls_are_padded_and_read_cached_tokens() -> None:
    class Engine:
        def padded_rows(self, requests: int, rows: int) -> int:
            return -(-rows // (4 * requests)) * 4 * requests

        def context_share(self, tokens: int) -> float:
            return tokens / 1000

    table, engine = CostTable(), Engine()
    made: Any = engine
    table.profile(lambda rows: linear(made.padded_rows(1, rows)), 16, made)
    assert table.run(1, 1, 8).tolist() == pytest.approx([linear(4)] * 4 + [linear(8)] * 4)
    assert table.at(2, 3) == pytest.approx(linear(8))
    assert table.at(1, 3, context=500) == pytest.approx(1.5 * linear(4))
    for _ in range(100):
        table.observe(1.5 * linear(4), 1, 3, context=500)
    assert table.speed.value == pytest.approx(1.0), "the context is no slower machine"


@given(
    st.lists(st.tuples(st.integers(1, 64), st.floats(1e-4, 1.0)), min_size=1, max_size=60),
    st.booleans(),
)
@example([(10, 1.0), (10, 1.0), (1, 0.03125), (5, 0.125)], False)
def test_seconds_are_never_negative_and_never_fall(
    calls: list[tuple[int, float]], was_profiled: bool
) -> None:
    table = profiled(8) if was_profiled else CostTable()
    for rows, seconds in calls:
        table.observe(seconds, 1, rows)
    found = table.run(1, 1, 80)
    assert (found >= 0).all() and (np.diff(found) >= -1e-12).all() and table.speed.value > 0
