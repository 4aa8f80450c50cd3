"""When a drafter that is off is tried again: after waits in proportion to what tries lose."""

from __future__ import annotations

FIRST, LEAST, MOST = 32, 8, 128
"""Steps without the drafter for each that a try lost: at first, at least, at most. So tries take
3 % of the time at first and 0.8 % in the end: more loses where drafts lose, less finds late where
they would gain."""
SHORTEST, LONGEST = 8, 2048  # steps between tries: fewer blur them, more would end all trying
_NEW_TEXT = 2  # times as soon for a new text: more costs where texts are alike, less where not


class Probe:
    """The way back of a drafter that is off: it is hoped again to pay, and drafts until the hope is
    gone. The next wait is for twice as many steps for each that was lost, or for a quarter as many
    if the try gained, so that what costs little is tried often. lost: plain steps since the last
    hope."""

    def __init__(self) -> None:
        self._multiple, self._waited, self.lost = FIRST, 0, 0.0

    @property
    def wait(self) -> int:
        """Steps without the drafter after which it is tried again."""
        return min(max(int(self._multiple * self.lost), SHORTEST), LONGEST)

    def passes(self) -> bool:
        """A step begins while the drafter is off. Returns whether to hope again."""
        self._waited += 1
        if self._waited <= self.wait:
            return False
        if self.lost:
            multiple = self._multiple * 2 if self.lost > 0 else self._multiple // 4
            self._multiple = min(max(multiple, LEAST), MOST)
        self._waited, self.lost = 0, 0.0
        return True

    def hasten(self, at_once: bool) -> None:
        """Another text begins. ``at_once``: trying costs next to nothing."""
        if at_once or self._waited >= self.wait / _NEW_TEXT:
            self._waited = LONGEST

    def drafted(self, lost: float) -> None:
        """A step with the drafter lost so many plain steps."""
        self._waited, self.lost = 0, self.lost + lost
