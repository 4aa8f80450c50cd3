"""Pause: when something that does not pay is tried again."""

from __future__ import annotations

FIRST_PAUSE = 64
LONGEST_PAUSE = 1024
NEXT_PAUSE = 16
"""What does not pay is tried again after so many times the seconds that a try takes: after 64 at
first, twice as many each time, after 16 while tries do pay. So tries take 1.6 % of the time at
first, 0.1 % in the end, and never more than 6 %."""

_MOST_WORTH = 2.0  # of a try, in the price of one
_LEAST_WORTH = 0.25  # that is to be noticed; less is not told from luck


class Pause:
    """When something that does not pay is tried again.

    A try that pays may have been luck. So their worth is summed up, never below nothing: while the
    sum is positive they follow each other soon, and those that do not pay bring it down again
    (Page's cumulative sum, by which a change of a mean is noticed early).
    """

    def __init__(self) -> None:
        self._waited = 0.0
        self._length = FIRST_PAUSE
        self._cost = 0.0  # seconds of the last try
        self._credit = 0.0

    def left(self, cost: float) -> float:
        """Seconds to the next try; `cost`: what it should take, if there was none yet."""
        length = NEXT_PAUSE if self._credit > 0 else self._length
        return length * (self._cost or cost) - self._waited

    def is_over(self, waited: float, cost: float) -> bool:
        """Called when `waited` seconds more have passed without it. If so, the next one begins."""
        self._waited += waited
        if self.left(cost) > 0:
            return False
        self._waited = 0.0
        return True

    def judge(self, tokens: float, price: float, cost: float) -> None:
        """A try took `cost` seconds and brought that many tokens, for which time was spent that
        brings `price` tokens otherwise."""
        self._cost = cost
        worth = min(tokens - price, _MOST_WORTH * price) / price if price > 0 else _MOST_WORTH
        self._credit = max(self._credit + worth - _LEAST_WORTH, 0.0)
        if not self._credit:
            self._length = min(2 * self._length, LONGEST_PAUSE)

    def restart(self) -> None:
        """It pays now."""
        self._waited, self._length, self._credit = 0.0, FIRST_PAUSE, 0.0
