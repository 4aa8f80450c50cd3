"""What drafters proposed over a model's own text, position by position, as `make` recorded it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_MOST = len(DIGITS) - 1


@dataclass(frozen=True)
class Place:
    """A position of a text, where a drafter proposed a chain: how many of its nodes came true, and
    of each node the chance that the drafter gave it once its parent is right."""

    right: int = 0
    chances: tuple[float, ...] = ()

    @property
    def nodes(self) -> int:
        return len(self.chances)

    def written(self) -> str:
        """A digit for each number: of nodes, of right ones, and of each chance in 36ths."""
        digits = (self.nodes, self.right, *(round(chance * _MOST) for chance in self.chances))
        return "".join(DIGITS[digit] for digit in digits)


def written(places: list[Place]) -> str:
    return "".join(place.written() for place in places)


def read(text: str) -> tuple[Place, ...]:
    """The inverse of `written`."""
    digits, places, at = [DIGITS.index(digit) for digit in text], [], 0
    while at < len(digits):
        nodes, right = digits[at : at + 2]
        chances = digits[at + 2 : at + 2 + nodes]
        places.append(Place(right, tuple(max(chance, 0.5) / _MOST for chance in chances)))
        at += 2 + nodes
    return tuple(places)


@dataclass(frozen=True)
class Text:
    """places: by drafter, of each position behind the first token. prompt: its tokens."""

    prompt: int
    places: dict[str, tuple[Place, ...]]

    @property
    def num_tokens(self) -> int:
        return 1 + min(map(len, self.places.values()))

    def token(self, index: int) -> int:
        """That of an output; each stands nowhere else."""
        return index + 1


@lru_cache
def texts(name: str, temperature: int, kind: str) -> tuple[Text, ...]:
    """The texts of one kind in a file of traces."""
    recorded = _recorded(name)["traces"][str(temperature)][kind]
    return tuple(
        Text(each["prompt"], {d: read(line) for d, line in each["drafts"].items()})
        for each in recorded
    )


def kinds(name: str) -> list[tuple[int, str]]:
    """Every temperature and kind of a file of traces."""
    return [(int(t), kind) for t, found in _recorded(name)["traces"].items() for kind in found]


def costs(name: str) -> dict[str, Any]:
    """What calls take there, as its file says."""
    found: dict[str, Any] = _recorded(name)["costs"]
    return found


@lru_cache
def _recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return found
