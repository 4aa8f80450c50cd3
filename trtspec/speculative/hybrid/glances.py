"""Glances: steps in which drafts are asked for although nothing is drafted of late."""

from __future__ import annotations

_FIRST = 8  # steps of new texts at rest to the first glance
_SHORTEST, _LONGEST = 16, 64  # steps between two; twice as many after one that shows little
_LUCK = 0.25  # tokens a request, taken off each glance: less cannot be told from luck
_MOST_CREDIT = 1.5  # tokens a request that glances may lose again after those that gained


class Glances:
    """When a union at rest looks at what its cheap members would draft.

    A comparison speaks for the texts of late, and the next text may copy what stands in its prompt.
    That shows in its first drafts, long before the next comparison. So one step in some asks for
    drafts, which are verified as ever. While such steps bring more tokens than they take, they
    follow each other: what they gain is summed up, never below 0 nor above a little, and they end
    when losses have used that up (Page's cumulative sum).
    """

    def __init__(self) -> None:
        self._left = self._pause = _SHORTEST
        self._begun = 0  # texts, at the last look at new ones
        self._credit = 0.0

    def is_due(self, begun: int) -> bool:
        """Whether the step to come, at rest, is a glance; asked once a step. ``begun``: how many
        texts were begun so far."""
        self._know(begun)
        self._left -= 1
        if self._left > 0:
            return False
        self._left = self._pause  # if it is not judged
        return True

    def num_left(self, begun: int) -> int:
        """How many of the steps to come are none for sure, if no text begins."""
        self._know(begun)
        return max(self._left - 1, 0)

    def pass_over(self, steps: int) -> None:
        """So many steps were none, about which nobody asked."""
        self._left = max(self._left - steps, 1)

    def judge(self, tokens: float, price: float) -> None:
        """A glance is over. ``tokens``: that it emitted, a request. ``price``: those that its time
        brings otherwise."""
        gained = self._credit + tokens - price - _LUCK
        self._credit = min(max(gained, 0.0), _MOST_CREDIT)
        if self._credit:
            self._left, self._pause = 1, _SHORTEST
        else:
            self._left, self._pause = self._pause, min(2 * self._pause, _LONGEST)

    def _know(self, begun: int) -> None:
        if begun != self._begun:
            self._begun = begun
            self._left, self._pause = min(self._left, _FIRST), _SHORTEST
