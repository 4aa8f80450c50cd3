"""What drafters proposed over a model's own text, position by position, as `make` recorded it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_name("smollm2.json")
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_MOST = len(DIGITS) - 1


@dataclass(frozen=True)
class Place:
    """A position of the text: nodes of the chain that a drafter proposed there, how many of them
    came true, and the mean chance that it gave a node."""

    nodes: int = 0
    right: int = 0
    sureness: float = 0.5

    def written(self) -> str:
        """Three digits."""
        return "".join(DIGITS[n] for n in (self.nodes, self.right, round(self.sureness * _MOST)))

    @classmethod
    def read(cls, text: str) -> Place:
        nodes, right, sureness = (DIGITS.index(digit) for digit in text)
        return cls(nodes, right, sureness / _MOST)


@lru_cache
def trace(temperature: int, drafter: str) -> tuple[Place, ...]:
    """Of all questions, one behind the other."""
    found: dict[str, Any] = json.loads(PATH.read_text())["traces"]
    text = found[str(temperature)][drafter]
    return tuple(Place.read(text[i : i + 3]) for i in range(0, len(text), 3))
