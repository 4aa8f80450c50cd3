"""Costs: the seconds of calls by size, on a machine whose speed varies."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from trtspec.executor.engines.counted_engine import CountedEngine

Floats = npt.NDArray[np.float64]
PROFILE_SECONDS = 2.0  # of one table: more would tell of larger calls, and delay the start
_ROUNDS = 6  # of a profile: more delay the start, fewer let a busy moment pass for a cost
_SET_UPS = 4  # first calls that set things up: more delay the start, fewer would be profiled
_SPEED_HALF_LIFE = 7.0  # calls: fewer follow bursts, more lag behind a machine that gets slower
_POINT_HALF_LIFE = 35.0  # calls of a size: fewer believe noise, more forget a change late
_TRUST = 2.0  # calls that a profiled point counts for: fewer would believe one call in a burst
_OUTLIER = 3.0  # times the expected seconds: a longer call was a pause, and counts as that long
_SIZES = np.array(sorted({1, *(n << i for n in (2, 3) for i in range(20))}))
"""Numbers of rows with a mean of their own: more of them learn from fewer calls each, fewer miss a
knee."""


class Mean:
    """A running mean: over all values at first, then older ones fade. value, count: of these."""

    def __init__(self, half_life: float, value: Any = 0.0, count: float = 0.0) -> None:
        self.value, self.count, self._most = value, count, half_life / math.log(2)

    def observe(self, value: Any, weight: float = 1.0) -> None:
        self.count = min(self.count + weight, self._most)
        self.value = self.value + weight / max(self.count, weight) * (value - self.value)


class CostTable:
    """Expected seconds of one kind of call by its rows, on the machine at its usual speed.

    It has a running mean at some sizes (1, 2, 3, 4, 6, 8, 12, ...), interpolated linearly, and
    extrapolated with the mean slope. Smaller calls take no longer than larger ones: a busy machine
    makes calls slower, never faster. Rows are those that an engine pads a call to; cached tokens
    add to the smallest call in proportion to their bytes relative to the weights'.

    speed: the current duration of an engine's calls, as a multiple: one factor for all sizes, since
    it does not change what pays.
    """

    def __init__(self) -> None:
        self.speed = Mean(_SPEED_HALF_LIFE, 1.0)
        self._engine: CountedEngine | None = None
        self._means: dict[int, Mean] = {}  # seconds, by places in _SIZES
        self._seconds = np.zeros(len(_SIZES))  # the same of all sizes, rising

    def profile(
        self, timed: Callable[[int], float | None], largest: int, engine: CountedEngine
    ) -> None:
        """Measure calls of up to `largest` rows within about PROFILE_SECONDS, the smallest first,
        in two rounds or more, of which the fastest call counts: other load rarely lasts for all of
        them. `timed`: makes a call of that many rows and returns its seconds; None: it cannot.
        ``engine``: pads calls and reads cached tokens."""
        self._engine, self._padded = engine, lru_cache(1 << 14)(engine.padded_rows)
        if None in [timed(1) for _ in range(_SET_UPS)]:
            return
        spent = 0.0
        for done in range(_ROUNDS):
            if done > 1 and spent + spent / done > PROFILE_SECONDS:
                break
            end = spent + PROFILE_SECONDS / 2
            for place, size in enumerate(_SIZES[largest >= _SIZES].tolist()):
                if spent <= end:
                    seconds = timed(size) or 0.0
                    spent += seconds
                    known = self._means.setdefault(place, Mean(_POINT_HALF_LIFE, seconds, _TRUST))
                    known.value = min(known.value, seconds)
        self._update()

    def at(self, requests: int, rows: int, context: int = 0) -> float:
        """Expected seconds; 0 before anything was measured. ``context``: cached tokens in total."""
        return float(self.run(requests, rows, 1, context)[0])

    def run(self, requests: int, rows: int, count: int, context: int = 0) -> Floats:
        """`at` for ``count`` numbers of rows from ``rows`` on."""
        sizes, read = list(range(rows, rows + count)), 0.0
        if self._engine is not None:
            sizes = [self._padded(requests, size) for size in sizes]
            read = self._engine.context_share(context) * self._seconds[0]
        return np.asarray(np.interp(sizes, _SIZES, self._seconds) + read)

    def observe(self, seconds: float, requests: int, rows: int, context: int = 0) -> None:
        """Record the duration of a call. A table moves by the ratio to what was expected, never
        below 0."""
        speed, size = self.speed, rows
        expected = self.at(requests, rows, context) or seconds / speed.value
        if not expected:
            return
        ratio = min(seconds / expected, _OUTLIER * speed.value)
        if self._engine is not None:
            size = self._padded(requests, rows)
            speed.observe(ratio)
        near = int(np.abs(_SIZES - size).argmin())
        usual = Mean(_POINT_HALF_LIFE, float(self._seconds[near]) or expected, _TRUST)
        mean = self._means.setdefault(near, usual)
        mean.observe(mean.value * ratio / speed.value)
        self._update()

    def _update(self) -> None:
        """Keep the table ascending, also beyond what is known: a flat end would make rows free."""
        known = sorted(self._means)
        sizes, seconds = _SIZES[known], np.array([self._means[i].value for i in known])
        seconds = np.minimum.accumulate(seconds[::-1])[::-1]
        slope = (seconds[-1] - seconds[0]) / max(sizes[-1] - sizes[0], 1)
        self._seconds = np.interp(_SIZES, sizes, seconds) + slope * np.maximum(
            _SIZES - sizes[-1], 0
        )
