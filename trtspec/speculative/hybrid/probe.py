"""When a drafter that is off is asked again: by probes, at once where a text repeats itself."""

from __future__ import annotations

from trtspec.executor.request import Request

STEPS = 4  # of a probe: fewer tell little, more lose more where nothing has changed
FIRST, LEAST, MOST = 32, 8, 256
"""Steps without the drafter for each that a probe loses: at first, at least, at most. So probes
take 3 % of the time at first and 0.4 % in the end: more loses where drafts lose, less finds late
where they would gain."""
SHORTEST, LONGEST = 8, 2048  # steps between probes: fewer blur them, more would end all probing
_N = 4  # tokens that must have stood together before: fewer do so in any text, more miss copies
_RUN = 4  # such places in a row: fewer are phrases, more begin to draft late
_REMEMBERED = 1 << 15  # newest tokens of a prompt that are remembered: more would take memory


class Probe:
    """The one way back: a few steps with the drafter, then twice as long without it if they lost,
    half as long if they gained. A wait is in proportion to what a probe loses, so that what costs
    little is asked often. lost: plain steps, by the last probe."""

    def __init__(self) -> None:
        self._multiple, self.lost, self._waited = FIRST, 1.0, 0

    @property
    def wait(self) -> int:
        """Steps without the drafter from one probe to the next."""
        return min(max(int(self._multiple * self.lost), SHORTEST), LONGEST)

    def passes(self) -> bool:
        """A step begins while the drafter is off. Returns whether a probe begins with it."""
        self._waited += 1
        return self._waited > self.wait

    def hasten(self) -> None:
        """A text repeats itself: the next probe begins at once, but for the least wait."""
        if self._waited >= int(LEAST * self.lost):
            self._waited = LONGEST

    def restart(self) -> None:
        """The drafter was asked because it pays."""
        self._waited = 0

    def judge(self, gained: bool, lost: float) -> None:
        """A probe is over, and lost so many plain steps."""
        self._waited, self.lost = 0, max(lost, 0.0)
        multiple = self._multiple // 2 if gained else self._multiple * 2
        self._multiple = min(max(multiple, LEAST), MOST)


class Repeats:
    """Watches texts for which nothing is drafted, at a microsecond a token. seen: by request hashes
    of n-grams, the length of the text, and how many places in a row stood before."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[set[int], int, int]] = {}

    def watch(self, request: Request) -> bool:
        """Take in what is new of a text. Returns whether its end stood in it before."""
        grams, length, run = self.seen.get(request.id, (set[int](), 0, 0))
        text = request.tokens[max(length - _N + 1, len(request.tokens) - _REMEMBERED, 0) :]
        for gram in map(hash, zip(*(text[i:] for i in range(_N)), strict=False)):
            run = run + 1 if gram in grams else 0
            grams.add(gram)
        self.seen[request.id] = grams, len(request.tokens), run
        return run >= _RUN
