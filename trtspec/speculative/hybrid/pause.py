"""Pause: when something that does not pay is tried again."""

from __future__ import annotations

FIRST_PAUSE = 64
LONGEST_PAUSE = 1024
NEXT_PAUSE = 16
"""Pauses between tries, in multiples of the seconds that a try takes: the first one, which doubles
after each try that does not pay; the longest; and the one while tries pay. So tries take 1.6 % of
the time at first, 0.1 % in the end, and never more than 6 %."""

_MOST_WORTH = 2.0  # that one try counts for, in prices of a try
_LEAST_WORTH = 0.25  # subtracted from the worth of each try: less cannot be told from luck


class Pause:
    """When something that does not pay is tried again.

    A try that pays may have been luck. So the worths of tries are summed up, never below 0: while
    the sum is positive, tries follow each other soon, and those that do not pay bring it down
    (Page's cumulative sum, which notices a change of a mean early).
    """

    def __init__(self) -> None:
        self._waited = 0.0
        self._length = FIRST_PAUSE
        self._cost = 0.0  # seconds of the last try
        self._credit = 0.0

    def left(self, cost: float) -> float:
        """Seconds to the next try. `cost`: of a try, where there was none yet."""
        length = NEXT_PAUSE if self._credit > 0 else self._length
        return length * (self._cost or cost) - self._waited

    def is_over(self, waited: float, cost: float) -> bool:
        """Add ``waited`` seconds without a try. True: the next try begins."""
        self._waited += waited
        if self.left(cost) > 0:
            return False
        self._waited = 0.0
        return True

    def judge(self, tokens: float, price: float, cost: float) -> None:
        """A try took ``cost`` seconds and brought ``tokens``; the time that was spent on them
        brings ``price`` tokens otherwise."""
        self._cost = cost
        worth = min(tokens - price, _MOST_WORTH * price) / price if price > 0 else _MOST_WORTH
        self._credit = max(self._credit + worth - _LEAST_WORTH, 0.0)
        if not self._credit:
            self._length = min(2 * self._length, LONGEST_PAUSE)

    def restart(self) -> None:
        """What was tried is in use: the next pause is a first one."""
        self._waited, self._length, self._credit = 0.0, FIRST_PAUSE, 0.0
