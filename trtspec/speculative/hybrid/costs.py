"""CostCurve: the seconds of a call by its size, profiled before serving and kept up to date."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import pairwise

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
_OUTDATED = 8  # observations after which the curve is made non-decreasing anew
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
        self._rising: list[float] = []  # `_seconds`, non-decreasing; empty: outdated

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
        if self._is_guess(size):  # so that the call says nothing of other sizes
            self._set(size, seconds / self.slowness)
            return
        seconds = self._slowness.observe(seconds, self._known_at(size))
        self._num_observed += 1
        self._bend(size, seconds / self.slowness)
        if self._num_observed % _OUTDATED == 0 or self._num_observed < _OUTDATED:
            self._rising = []

    def at(self, size: int) -> float:
        """Expected seconds of one call; 0 before anything was measured."""
        return self._known_at(size) * self.slowness

    def run(self, first: int, count: int) -> list[float]:
        """Expected seconds of calls of ``count`` sizes from ``first`` on: `at` of each, for
        less."""
        points, slowness = self._points, self.slowness
        if not points:
            return [0.0] * count
        known, end = self._known(), first + count
        found = [known[0] * slowness] * (min(points[0], end) - first)
        for low, high in pairwise(range(len(points))):
            begin = max(points[low], first)
            if begin >= end:
                return found
            slope = (known[high] - known[low]) / (points[high] - points[low])
            found += [
                (slope * (size - points[low]) + known[low]) * slowness
                for size in range(begin, min(points[high], end))
            ]
        slope, last = self._slope, points[-1]
        beyond = range(max(last, first), end)
        return found + [(known[-1] + slope * (size - last)) * slowness for size in beyond]

    def table(self) -> str:
        """The curve as text, in milliseconds by size."""
        if not self.is_measured:
            return "nothing measured"
        return ", ".join(f"{size}: {self.at(size) * 1e3:.2f}" for size in self._points)

    def _known_at(self, size: int) -> float:
        """The curve at that size, at a slowness of 1."""
        points = self._points
        if not points:
            return 0.0
        known = self._known()
        high = bisect_left(points, size)
        if high == len(points):
            return known[-1] + self._slope * (size - points[-1])
        if high == 0 or points[high] == size:
            return known[high]
        low = high - 1
        slope = (known[high] - known[low]) / (points[high] - points[low])
        return slope * (size - points[low]) + known[low]

    def _known(self) -> list[float]:
        """The curve at its points."""
        if not self._rising:
            weights = [_PROFILED_WEIGHT + seen for seen in self._seen]
            self._rising = _rising(self._seconds, weights)
        return self._rising

    @property
    def _slope(self) -> float:
        """The mean slope, which goes on beyond what was seen; a flat end would make rows free."""
        first, last, known = self._points[0], self._points[-1], self._known()
        return (known[-1] - known[0]) / (last - first) if last > first else 0.0

    def _is_guess(self, size: int) -> bool:
        """Whether the size is beyond the curve, or within a wide gap of it."""
        points = self._points
        high = bisect_left(points, size)
        if high == len(points):
            return True
        return points[high] > max(size, _WIDEST_GAP * points[max(high - 1, 0)])

    def _set(self, size: int, seconds: float) -> None:
        """Put a point there, or replace the one that is."""
        place = bisect_left(self._points, size)
        if place < len(self._points) and self._points[place] == size:
            self._seconds[place] = seconds
        else:
            self._points.insert(place, size)
            self._seconds.insert(place, seconds)
            self._seen.insert(place, 0.0)
        self._rising = []

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
