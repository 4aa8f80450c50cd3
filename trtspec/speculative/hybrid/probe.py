"""Probe: when a drafter that is off is tried again, with waits in proportion to what probes
lose."""

from __future__ import annotations

FIRST, MOST = 32, 128
"""Steps without the drafter for each step that a probe lost, at first and at most, so that probes
take 3 % of the time at first and 0.8 % in the end: fewer steps lose more where drafts lose, more
steps find gains later."""
SHORTEST = 8  # steps between tries: fewer blur them, more find late what costs nothing to try
_HOPE = 8  # steps of a try after which half of the hope is left: fewer decide by chance, more lose
_NEW_TEXT = 2  # times as soon for a new text: more costs where texts are alike, less where not


class Probe:
    """Backoff for a drafter that is off: a probe assumes again that it pays, and lets it draft
    until that assumption is refuted. The next wait is twice as long for each step lost, or a
    quarter as long if the probe gained, so cheap probes are frequent. Since the last probe began,
    lost: plain steps; num_asked: steps in which it was to draft."""

    def __init__(self) -> None:
        self._multiple, self._waited, self.lost, self.num_asked = float(FIRST), 0.0, 0.0, 0

    @property
    def wait(self) -> float:
        """Steps without the drafter until the next probe."""
        return max(self._multiple * self.lost, SHORTEST)

    @property
    def hope(self) -> float:
        """The remaining optimism; at 0.5 or more too little is known to tell it from chance."""
        return float(0.5 ** (self.num_asked / _HOPE))

    def passes(self) -> bool:
        """A step begins while the drafter is off. Returns whether a probe begins."""
        self._waited += 1
        if self._waited <= self.wait:
            return False
        if self.lost:
            self._multiple = min(self._multiple * (2 if self.lost > 0 else 0.25), MOST)
        self._waited, self.lost, self.num_asked = 0.0, 0.0, 0
        return True

    def hasten(self, at_once: bool) -> None:
        """Another text begins. ``at_once``: a probe costs next to nothing."""
        if at_once or self._waited >= self.wait / _NEW_TEXT:
            self._waited = self.wait

    def drafted(self, lost: float) -> None:
        """A step with the drafter lost the time of that many plain steps."""
        self._waited, self.lost = 0.0, self.lost + lost
