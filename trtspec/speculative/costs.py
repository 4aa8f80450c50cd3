"""CostCurve: the seconds of a call by its size, profiled before serving and kept up to date."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

PROFILE_SECONDS = 2.0
"""What profiling one curve may take; sizes beyond go on as the last ones rise."""

_CURVE_WEIGHT = 0.05
_OFFSET_WEIGHT = 0.1
_OUTLIER = 3.0  # times what was expected: a pause of the machine is no cost of the rows
_OUTDATED = 8  # observations by which the curve hardly changes
_LARGEST = 1 << 16


class CostCurve:
    """Expected seconds of a call as a function of its size: rows of a verify step, requests of a
    draft.

    A running mean at some sizes (1, 2, 3, 4, 6, 8, 12, ...), made non-decreasing and read by linear
    interpolation. What long contexts, the work around a call and the machine's mood add changes
    faster than the curve, and alike for all sizes: an offset of its own follows it.
    """

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._offset = 0.0
        self._num_observed = 0
        self._known: tuple[Floats, Floats] | None = None

    @property
    def is_measured(self) -> bool:
        return bool(self._seconds)

    def profile(self, timed: Callable[[int], float | None], largest: int) -> None:
        """Measure calls of the sizes up to `largest`, the smallest first: `timed` makes a call of a
        size and returns its seconds, or None if it cannot. Each is the better of two, within
        PROFILE_SECONDS in all."""
        spent = timed(1)  # the first call sets things up
        for size in [size for size in _SIZES if size < largest] + [largest]:
            for _ in range(2):
                if spent is None or spent > PROFILE_SECONDS:
                    return
                seconds = timed(size)
                assert seconds is not None, "what could be timed once can be again"
                spent += seconds
                self._seconds[size] = min(seconds, self._seconds.get(size, seconds))
        self._known = None

    def observe(self, size: int, seconds: float) -> None:
        """A call of that size took that long."""
        if not self.is_measured:
            self._seconds[size] = seconds
        expected = self.at(size)
        if self._num_observed:
            seconds = min(seconds, _OUTLIER * expected)
        error = seconds - expected
        self._offset += max(_OFFSET_WEIGHT, 1 / (1 + self._num_observed)) * error
        self._num_observed += 1
        if size > max(self._seconds):
            self._seconds[size] = seconds - self._offset
        else:
            self._bend(size, seconds - self._offset)
        if self._num_observed % _OUTDATED == 0 or self._num_observed < _OUTDATED:
            self._known = None

    def at(self, size: int) -> float:
        """Expected seconds of one call; 0 before anything was measured."""
        return float(self.over(np.array((size,)))[0])

    def over(self, sizes: npt.NDArray[np.int64]) -> Floats:
        """Expected seconds of calls of `sizes [m]`."""
        if not self._seconds:
            return np.zeros(len(sizes))
        if self._known is None:
            self._known = self._curve()
        points, curve = self._known
        seconds: Floats = np.interp(sizes, points, curve)
        if len(curve) > 1:
            # Beyond what was seen the mean slope goes on; a flat end would make rows free.
            slope = (curve[-1] - curve[0]) / (points[-1] - points[0])
            seconds += slope * np.maximum(sizes - points[-1], 0)
        return np.maximum(seconds + self._offset, 0.0)

    def table(self) -> str:
        """The curve as text, in milliseconds by size."""
        if not self._seconds:
            return "nothing measured"
        points = np.array(sorted(self._seconds))
        pairs = zip(points, self.over(points), strict=True)
        return ", ".join(f"{size}: {seconds * 1e3:.2f}" for size, seconds in pairs)

    def _bend(self, size: int, own: float) -> None:
        """Draw the points on both sides of a size towards what it took without the offset."""
        points = sorted(self._seconds)
        above = bisect_left(points, size)
        high, low = points[above], points[max(above - 1, 0)]
        share = (size - low) / (high - low) if high > low else 1.0
        between = (1 - share) * self._seconds[low] + share * self._seconds[high]
        step = _CURVE_WEIGHT * (own - between)
        self._seconds[high] += share * step
        if low < high:
            self._seconds[low] += (1 - share) * step

    def _curve(self) -> tuple[Floats, Floats]:
        points = sorted(self._seconds)
        raw = np.array([self._seconds[point] for point in points])
        # The mean of the least curve above and of the greatest below is itself non-decreasing.
        above = np.maximum.accumulate(raw)
        below = np.minimum.accumulate(raw[::-1])[::-1]
        return np.array(points, np.float64), (above + below) / 2


def _grid(largest: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, ...: powers of two and the middles between them."""
    sizes = [1, 2]
    while sizes[-1] < largest:
        sizes += [sizes[-1] * 3 // 2, sizes[-1] * 2]
    return sizes


_SIZES = _grid(_LARGEST)
