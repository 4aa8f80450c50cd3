"""Speed by category of the prompts, where every prompt had a turn of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Protocol

from trtspec.bench.report.table import print_table


class TimedTurns(Protocol):
    """A round: the tokens of each prompt, and the seconds of each turn, in their order."""

    @property
    def tokens(self) -> Sequence[Sequence[int]]: ...

    @property
    def turn_seconds(self) -> Sequence[float]: ...


def by_category(
    categories: Sequence[str | None],
    rounds: Sequence[TimedTurns],
    baseline: Sequence[TimedTurns],
) -> dict[str, dict[str, float]]:
    """tokens_per_second and speed_up (over no speculation, `baseline`) of the prompts of each
    category: medians over the rounds. Empty if no prompt has a category, or if prompts shared their
    turns, so that their times are unknown."""
    alone = all(len(r.turn_seconds) == len(categories) for r in (*rounds, *baseline))
    if not alone:
        return {}
    found = {}
    for name in dict.fromkeys(category for category in categories if category is not None):
        places = [i for i, category in enumerate(categories) if category == name]
        own, plain = ([_speed(r, places) for r in each] for each in (rounds, baseline))
        found[name] = {
            "tokens_per_second": median(own),
            "speed_up": median(a / b for a, b in zip(own, plain, strict=True)),
        }
    return found


def print_categories(methods: Sequence[Mapping[str, Any]]) -> None:
    """One line per category, with its speed-up by each method; nothing without categories."""
    names = list(methods[0]["categories"])
    if names:
        rows = [
            [name, *(f"{figures['categories'][name]['speed_up']:.2f}" for figures in methods)]
            for name in names
        ]
        headers = ["category", *(str(figures["name"]) for figures in methods)]
        print_table("speed-up by category", headers, rows)


def _speed(measured: TimedTurns, places: Sequence[int]) -> float:
    seconds = sum(measured.turn_seconds[i] for i in places)
    return sum(len(measured.tokens[i]) for i in places) / seconds
