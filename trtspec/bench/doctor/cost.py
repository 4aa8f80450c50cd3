"""The expected gain of speculation, from the times of calls and how often drafts agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class StepCosts:
    """Milliseconds: of verifying the root alone, of verifying a whole draft of ``depth`` steps and
    ``rows`` rows, and of drafting it."""

    one_row_ms: float
    verify_ms: float
    draft_ms: float
    rows: int
    depth: int

    def speed_up(self, acceptance_length: float) -> float:
        """Tokens per second relative to no speculation; work on the host is ignored."""
        return acceptance_length * self.one_row_ms / (self.verify_ms + self.draft_ms)

    def best_length(self, rates: Sequence[float]) -> tuple[int, float]:
        """The length of a chain that gains most, and its speed-up; 0 and 1.0 if none gains.

        ``rates[i]``: unconditional, of drafts that agree at depth i + 1. A shorter draft is assumed
        to cost in proportion to its rows above the first, and its steps.
        """
        best, gain = 0, 1.0
        for length in range(1, min(len(rates), self.depth) + 1):
            share = length / self.depth
            verify = self.one_row_ms + (self.verify_ms - self.one_row_ms) * share
            step_ms = verify + self.draft_ms * share
            found = (1.0 + sum(rates[:length])) * self.one_row_ms / step_ms
            if found > gain:
                best, gain = length, found
        return best, gain

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)
