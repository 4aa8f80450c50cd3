"""Cost curves."""

from __future__ import annotations

import random

import numpy as np
import pytest

from trtspec.speculative.hybrid.costs import PROFILE_SECONDS, CostCurve


def linear(size: int) -> float:
    return 2e-3 + 1e-4 * size


def profiled(largest: int = 48) -> CostCurve:
    curve = CostCurve()
    curve.profile(linear, largest)
    return curve


def test_a_profile_is_read_between_and_beyond_its_points() -> None:
    curve = profiled()
    for size in (1, 5, 7, 40, 48, 100):
        assert curve.at(size) == pytest.approx(linear(size))
    assert curve.run(1, 8) == pytest.approx(list(map(linear, range(1, 9))))
    assert CostCurve().at(3) == 0.0


def test_profiling_takes_no_longer_than_it_may() -> None:
    calls: list[int] = []

    def slow(size: int) -> float:
        calls.append(size)
        return 0.1 * size

    curve = CostCurve()
    curve.profile(slow, 1024)
    assert sum(calls) * 0.1 < PROFILE_SECONDS + 0.1 * (2 * calls[-1] + 4), "and the first calls"
    assert curve.at(64) == pytest.approx(6.4), "the last slope goes on"
    unable = CostCurve()
    unable.profile(lambda size: None, 8)
    assert not unable.is_measured


def test_calls_that_set_things_up_are_no_profile() -> None:
    first = iter([2.0, 0.9, 0.3])
    curve = CostCurve()
    curve.profile(lambda size: next(first, linear(size)), 8)
    for size in (1, 4, 8):
        assert curve.at(size) == pytest.approx(linear(size))


def test_what_is_seen_soon_outweighs_a_wrong_profile() -> None:
    """Measured while the machine did something else: too slow, and in part."""
    for wrong in (lambda size: 20 * linear(size), lambda size: 0.1 if size < 3 else linear(size)):
        curve, rng = CostCurve(), random.Random(3)
        curve.profile(wrong, 96)
        for _ in range(60):
            size = rng.choice((1, 16, 80, 96))
            curve.observe(size, linear(size) * rng.uniform(0.95, 1.05))
        sizes = (1, 16, 80, 96)
        worst = max(abs(wrong(size) - linear(size)) for size in sizes)
        for size in sizes:
            assert abs(curve.at(size) - linear(size)) < 0.15 * worst


def test_sizes_that_are_not_seen_follow_the_machine_s_pace() -> None:
    for factor in (0.8, 1.3):
        curve = profiled()
        for size in (1, 8, 24):
            for _ in range(60):
                curve.observe(size, linear(size))
        for _ in range(40):
            curve.observe(8, factor * linear(8))
        for size in (8, 24, 48):
            assert curve.at(size) == pytest.approx(factor * linear(size), rel=0.05)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 32])
def test_one_slow_call_of_a_size_is_not_its_cost(size: int) -> None:
    curve = profiled()
    for _ in range(60):
        curve.observe(1, linear(1))
        curve.observe(size, linear(size))
    curve.observe(size, 2 * linear(size))
    for _ in range(60):
        curve.observe(1, linear(1))
    assert curve.at(size) == pytest.approx(linear(size), rel=0.05)


def test_a_pause_is_not_a_cost() -> None:
    curve = profiled()
    for _ in range(30):
        curve.observe(8, linear(8))
    curve.observe(8, 100 * linear(8))
    assert curve.at(8) < 1.3 * linear(8)


def test_the_curve_bends_to_what_is_seen_and_never_falls() -> None:
    """A knee that the profile did not show."""
    rng, curve = random.Random(0), profiled()

    def knee(size: int) -> float:
        return linear(size) + 5e-4 * max(size - 16, 0)

    for _ in range(2000):
        size = rng.randint(1, 48)
        curve.observe(size, knee(size) * rng.uniform(0.9, 1.1))
    for size in (4, 12, 24, 40):
        assert curve.at(size) == pytest.approx(knee(size), rel=0.1)
    assert (np.diff(curve.run(1, 59)) >= 0).all()
    for first, count in ((0, 3), (1, 59), (17, 1), (900, 200), (5, 0)):
        assert curve.run(first, count) == list(map(curve.at, range(first, first + count)))
