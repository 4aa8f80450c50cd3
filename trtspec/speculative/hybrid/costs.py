"""CostCurve: the seconds of a call by its size, profiled before serving and kept up to date."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

PROFILE_SECONDS = 2.0
"""Most seconds of profiling one curve. Beyond the last profiled size the curve goes on at its mean
slope."""

_MOST_SET_UPS, _SETTLED = 4, 0.7
"""First calls set things up: at most that many, until a call takes more than that share of the one
before it."""

_CURVE_WEIGHT = 0.02
_SLOWNESS_WEIGHT = 0.1
_LEAST_SLOWNESS, _MOST_SLOWNESS = 0.5, 1.5  # beyond, the profile was made on a busy machine
_PROFILED_WEIGHT = 0.1  # of a profiled point, in observed calls
_PROFILED_TRUST = 2.0  # observed calls of a size after which these count as much as its profile
_WIDEST_GAP = 1.6  # ratio of neighbouring points; a size observed in a wider gap becomes a point
_OUTLIER = 3.0  # times the expected seconds; a longer call counts as that long
_OUTDATED = 8  # observations between two drawings of the curve
_LARGEST = 1 << 16


class Slowness:
    """The present speed of the machine: what an engine's calls take now, as a multiple of what
    they took when they were profiled."""

    def __init__(self) -> None:
        self.value = 1.0
        self._num_observed = 0

    def observe(self, seconds: float, known: float) -> float:
        """A call took ``seconds``, ``known`` at a slowness of 1. Returns the seconds that count, as
        a pause of the machine is no cost of the call."""
        if self._num_observed:
            seconds = min(seconds, _OUTLIER * known * self.value)
        if known > 0:
            weight = max(_SLOWNESS_WEIGHT, 1 / (1 + self._num_observed))
            value = self.value + weight * (seconds / known - self.value)
            self.value = min(max(value, _LEAST_SLOWNESS), _MOST_SLOWNESS)
        self._num_observed += 1
        return seconds


class CostCurve:
    """Expected seconds of a call as a function of its size: rows of a verify step, requests of a
    draft.

    The curve has a running mean at some sizes (1, 2, 3, 4, 6, 8, 12, ...), made non-decreasing and
    read by linear interpolation. A few observed calls of a size outweigh its profile, the first one
    alone does not: where that falls into a burst of other work, a size that is then left alone
    would seem dear for long. A machine that is shared, or gets warm, changes the speed of all calls
    at once: `Slowness` follows it, so that sizes without recent calls are judged by the present
    speed too.
    """

    def __init__(self, slowness: Slowness | None = None) -> None:
        """``slowness``: of the engine, shared by the curves of its other kinds of calls."""
        self._points: list[int] = []  # sizes, rising
        self._seconds: list[float] = []  # of these, at a slowness of 1
        self._seen: list[float] = []  # calls of these
        self._slowness = slowness or Slowness()
        self._num_observed = 0
        self._curve = np.zeros(0)  # by size, from 0 on; empty: outdated

    @property
    def slowness(self) -> float:
        """What calls take now, as a multiple of the curve."""
        return self._slowness.value

    @property
    def is_measured(self) -> bool:
        return bool(self._points)

    def profile(self, timed: Callable[[int], float | None], largest: int) -> None:
        """Measure calls of the sizes up to `largest`, the smallest first, within about
        PROFILE_SECONDS; of two calls of a size the faster one counts. `timed`: makes a call of a
        size and returns its seconds; None: it cannot."""
        settling = timed(1)
        for _ in range(_MOST_SET_UPS):
            if settling is None:
                return
            before, settling = settling, timed(1)
            if settling is None or settling > _SETTLED * before:
                break
        spent = 0.0
        for size in [size for size in _SIZES if size < largest] + [largest]:
            if spent > PROFILE_SECONDS:
                return
            pair = [seconds for seconds in (timed(size), timed(size)) if seconds is not None]
            assert len(pair) == 2, "what could be timed once can be again"
            spent += sum(pair)
            self._set(size, min(pair))

    def observe(self, size: int, seconds: float) -> None:
        """A call of that size took that long."""
        points = self._points
        high = bisect_left(points, size)
        if high == len(points) or points[high] > _WIDEST_GAP * points[max(high - 1, 0)]:
            # The curve was a guess here, so that the call says nothing of other sizes.
            self._set(size, seconds / self.slowness)
            return
        seconds = self._slowness.observe(seconds, self._known(size))
        self._num_observed += 1
        self._bend(size, seconds / self.slowness)
        if self._num_observed % _OUTDATED == 0 or self._num_observed < _OUTDATED:
            self._curve = self._curve[:0]

    def at(self, size: int) -> float:
        """Expected seconds of one call; 0 before anything was measured."""
        return self._known(size) * self.slowness

    def over(self, sizes: npt.NDArray[np.int64]) -> Floats:
        """Expected seconds of calls of `sizes [m]`."""
        if not len(self._curve) or sizes.max(initial=0) >= len(self._curve):
            self._draw(int(sizes.max(initial=0)))
        return self._curve[sizes] * self.slowness

    def table(self) -> str:
        """The curve as text, in milliseconds by size."""
        if not self.is_measured:
            return "nothing measured"
        return ", ".join(f"{size}: {self.at(size) * 1e3:.2f}" for size in self._points)

    def _known(self, size: int) -> float:
        """The curve at that size, at a slowness of 1."""
        if size >= len(self._curve):
            self._draw(size)
        return float(self._curve[size])

    def _set(self, size: int, seconds: float) -> None:
        """Put a point there, or replace the one that is."""
        place = bisect_left(self._points, size)
        if place < len(self._points) and self._points[place] == size:
            self._seconds[place] = seconds
        else:
            self._points.insert(place, size)
            self._seconds.insert(place, seconds)
            self._seen.insert(place, 0.0)
        self._curve = self._curve[:0]

    def _bend(self, size: int, own: float) -> None:
        """Move the points on both sides of a size towards ``own`` seconds, at a slowness of 1."""
        points, seconds = self._points, self._seconds
        high = bisect_left(points, size)
        low = max(high - 1, 0)
        width = points[high] - points[low]
        share = (size - points[low]) / width if width else 1.0
        between = (1 - share) * seconds[low] + share * seconds[high]
        for place, part in ((high, share), (low, 1 - share if width else 0.0)):
            self._seen[place] += part
            weight = max(_CURVE_WEIGHT, 1 / (self._seen[place] + _PROFILED_TRUST))
            seconds[place] += weight * part * (own - between)

    def _draw(self, size: int) -> None:
        """Compute the curve from its points, for sizes up to twice ``size``."""
        sizes = np.arange(2 * max(size, self._points[-1] if self._points else 1) + 1)
        if not self._points:
            self._curve = np.zeros(len(sizes))
            return
        known = _rising(self._seconds, [_PROFILED_WEIGHT + seen for seen in self._seen])
        self._curve = np.interp(sizes, self._points, known)
        first, last = self._points[0], self._points[-1]
        if last > first:
            # Beyond what was seen the mean slope goes on; a flat end would make rows free.
            slope = (known[-1] - known[0]) / (last - first)
            self._curve += slope * np.maximum(sizes - last, 0)


def _rising(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The non-decreasing values nearest to these, by weighted squares: neighbours that fall are
    replaced by their mean (pool adjacent violators)."""
    pools: list[tuple[float, float, int]] = []  # mean, weight, how many
    for value, weight in zip(values, weights, strict=True):
        pool = value, weight, 1
        while pools and pools[-1][0] > pool[0]:
            mean, total, count = pools.pop()
            both = total + pool[1]
            pool = (mean * total + pool[0] * pool[1]) / both, both, count + pool[2]
        pools.append(pool)
    return [mean for mean, _, count in pools for _ in range(count)]


def _grid(largest: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, ...: powers of two and the middles between them."""
    sizes = [1, 2]
    while sizes[-1] < largest:
        sizes += [sizes[-1] * 3 // 2, sizes[-1] * 2]
    return sizes


_SIZES = _grid(_LARGEST)
