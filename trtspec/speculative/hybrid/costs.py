"""Costs: the seconds of calls by their sizes, on a machine that changes its speed."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from trtspec.executor.counted_engine import CountedEngine

Floats = npt.NDArray[np.float64]
PROFILE_SECONDS = 2.0  # of one table: more would tell of larger calls, and delay the start
_ROUNDS = 6  # of a profile: more delay the start, fewer let a busy moment pass for a cost
_SET_UPS = 4  # first calls that set things up: more delay the start, fewer would be profiled
_SPEED_HALF_LIFE = 7.0  # calls: fewer follow bursts, more lag behind a machine that gets slower
_POINT_HALF_LIFE = 35.0  # calls of a size: fewer believe noise, more forget a change late
_TRUST = 2.0  # calls that a profiled point counts for: fewer would believe one call in a burst
_OUTLIER = 3.0  # times the expected seconds: a longer call was a pause, and counts as that long
_FAR = 1 << 20  # rows that no call has


class Mean:
    """A running mean: over all at first, then older ones fade. value, count: of these."""

    def __init__(self, half_life: float, value: Any = 0.0, count: float = 0.0) -> None:
        self.value, self.count, self._most = value, count, half_life / math.log(2)

    def observe(self, value: Any, weight: float = 1.0) -> None:
        self.count = min(self.count + weight, self._most)
        self.value = self.value + weight / max(self.count, weight) * (value - self.value)


class CostTable:
    """Expected seconds of one kind of call by its rows, on the machine at its usual speed.

    It has a running mean at some sizes (1, 2, 3, 4, 6, 8, 12, ...), read by linear interpolation;
    beyond the last the mean slope goes on. What is smaller takes no longer, as a busy machine makes
    calls slower, never faster. Rows are those that the engine pads a call to; cached tokens add as
    much of the smallest call as their bytes are of the weights'.

    speed: what calls take now, as a multiple: one factor for all, as it changes nothing of what
    pays. follows: whether it follows these calls; short ones differ by chance.
    """

    def __init__(self, follows: bool = True) -> None:
        self.speed = Mean(_SPEED_HALF_LIFE, 1.0)
        self._follows = follows
        self._engine: CountedEngine | None = None
        self._means: dict[int, Mean] = {}  # seconds by rows
        self._rows, self._seconds = np.zeros(0), np.zeros(0)  # the same, both rising

    def profile(
        self, timed: Callable[[int], float | None], largest: int, engine: CountedEngine | None
    ) -> None:
        """Measure calls of up to `largest` rows within about PROFILE_SECONDS, the smallest first,
        in two rounds or more, of which the fastest call counts: what the machine does beside seldom
        lasts for all. `timed`: makes a call of so many rows and returns its seconds; None: it
        cannot. ``engine``: that pads, and reads cached tokens."""
        if engine is not None:
            self._engine, self._padded = engine, lru_cache(1 << 14)(engine.padded_rows)
        if None in [timed(1) for _ in range(_SET_UPS)]:
            return
        sizes, spent = {1, largest, *(n << i for n in (2, 3) for i in range(20))}, 0.0
        for done in range(_ROUNDS):
            if done > 1 and spent + spent / done > PROFILE_SECONDS:
                break
            end = spent + PROFILE_SECONDS / 2
            for size in sorted(size for size in sizes if size <= largest):
                if spent <= end:
                    seconds = timed(size) or 0.0
                    spent += seconds
                    self._add(size, min(seconds, self._means.get(size, Mean(1.0, seconds)).value))

    def at(self, requests: int, rows: int, context: int = 0) -> float:
        """Expected seconds; 0 before anything was measured. ``context``: cached tokens in all."""
        return float(self.run(requests, rows, 1, context)[0])

    def run(self, requests: int, rows: int, count: int, context: int = 0) -> Floats:
        """`at` of ``count`` numbers of rows from ``rows`` on."""
        if not self._means:
            return np.zeros(count)
        sizes, read = list(range(rows, rows + count)), 0.0
        if self._engine is not None:
            sizes = [self._padded(requests, size) for size in sizes]
            read = self._engine.context_share(context) * self._seconds[0]
        return np.asarray(np.interp(sizes, self._rows, self._seconds) + read)

    def observe(self, seconds: float, requests: int, rows: int, context: int = 0) -> None:
        """A call took that long. A table moves by the ratio to what was expected, never below 0."""
        size = rows if self._engine is None else self._padded(requests, rows)
        expected, speed = self.at(requests, rows, context), self.speed
        if not expected:
            self._add(size, seconds / speed.value)
            return
        ratio = seconds / expected
        if speed.count:
            ratio = min(ratio, _OUTLIER * speed.value)
        if self._follows:
            speed.observe(ratio)
        if min(self._means) <= size <= max(self._means):
            near = self._means[min(self._means, key=lambda known: abs(known - size))]
            near.observe(near.value * ratio / speed.value)
            self._update()
        else:
            self._add(size, self.at(requests, rows) * ratio / speed.value)

    def _add(self, size: int, seconds: float) -> None:
        self._means[size] = Mean(_POINT_HALF_LIFE, seconds, _TRUST)
        self._update()

    def _update(self) -> None:
        rows = sorted(self._means)
        falling = accumulate((float(self._means[size].value) for size in reversed(rows)), min)
        seconds = [*falling][::-1]
        # A flat end would make rows free.
        slope = (seconds[-1] - seconds[0]) / max(rows[-1] - rows[0], 1)
        self._rows = np.array([*rows, _FAR])
        self._seconds = np.array([*seconds, seconds[-1] + slope * (_FAR - rows[-1])])
