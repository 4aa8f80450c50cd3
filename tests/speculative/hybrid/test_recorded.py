"""The referee: what adaptive methods make of drafts that were recorded on real texts."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from ..recorded.serving import tokens_per_second
from ..recorded.trace import kinds
from ..simulated_serving import in_bursts, in_steps, steady

METHODS = {"smollm2": ("ngram", "suffix"), "qwen_pair": ("suffix", "draft_model")}
ROUNDS = {"smollm2": 1, "qwen_pair": 3}
BY = {"steady": steady, "in steps": in_steps, "in bursts": in_bursts}
Which = tuple[int, str]
CASES = [(name, which, methods) for name, all_of in METHODS.items() for which in kinds(name)
         for methods in (*((method,) for method in all_of), all_of)]  # fmt: skip


@cache
def speed(
    name: str,
    served: tuple[Which, ...],
    methods: tuple[str, ...],
    adapts: bool,
    batch: int = 1,
    by: Callable[[float], float] = steady,
) -> dict[Which, float]:
    return tokens_per_second(name, methods, adapts, served, batch, ROUNDS[name], by)


def shares(
    name: str,
    served: tuple[Which, ...],
    methods: tuple[str, ...],
    batch: int = 1,
    by: Callable[[float], float] = steady,
) -> list[float]:
    """Of the best of none and of each method always, of each kind."""
    fixed = [(), *((method,) for method in methods)]
    others = [speed(name, served, alone, False, batch) for alone in fixed]
    found = speed(name, served, methods, True, batch, by)
    return [found[which] / max(other[which] for other in others) for which in served]


@pytest.mark.parametrize(("name", "which", "methods"), CASES)
def test_adaptive_is_as_fast_as_the_best_of_none_and_each(
    name: str, which: Which, methods: tuple[str, ...]
) -> None:
    """Texts of one kind, one behind the other, learning included."""
    assert min(shares(name, (which,), methods)) >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("by", ["in steps", "in bursts"])
@pytest.mark.parametrize("drafter", METHODS["smollm2"])
def test_on_machines_that_change_their_speed(drafter: str, by: str) -> None:
    for which in kinds("smollm2"):
        assert min(shares("smollm2", (which,), (drafter,), 1, BY[by])) >= 0.95


def test_neither_none_nor_one_method_would_do() -> None:
    """The best differs from kind to kind, by more than what adapting may lose."""
    best = set()
    for which in kinds("qwen_pair"):
        ways: list[tuple[str, ...]] = [(), *((method,) for method in METHODS["qwen_pair"])]
        found = {way: speed("qwen_pair", (which,), way, False)[which] for way in ways}
        first, second = sorted(found, key=lambda way: -found[way])[:2]
        if found[first] > 1.05 * found[second]:
            best.add(first)
    assert len(best) >= 2
