"""Rest: whether drafters without an engine are asked at all, by what that brings and takes."""

from __future__ import annotations

from statistics import median

_FIRST, _PROBE = 8, 4  # steps with drafts: before the first comparison, and of a later try
_PLAIN = 4  # steps without drafts that are compared with those beside them
_SHORTEST, _LONGEST = 16, 64  # steps of a rest: twice as many each time, so that tries cost little
_AGAIN = 512  # steps with drafts after which some without are taken, to compare
_MEMORY = 64.0  # steps, of rests too, that tokens are a mean of
_RATIO_MEMORY = 11  # comparisons that the ratio of seconds is the median of: of 5, bursts win
_OUTLIER = 3.0  # times the median of a few steps; a longer step was a pause of the machine
_BESIDE = 8  # newest steps of a kind that are compared


class Rest:
    """Steps with one number of requests, with the drafts of an index and without.

    Looking for drafts, and taking in what became of them, is work of the host in every step, which
    nothing pays for where few drafts are accepted. So steps with drafts and steps without are
    compared where they lie beside each other, as a shared machine changes its speed within seconds:
    drafting pays while its tokens a step exceed the ratio of the seconds. What verifying nodes
    takes differs from step to step with the nodes, as tokens do, and is a mean of as many steps.
    Where drafting does not pay, drafters rest, longer each time, and a few steps try them again. A
    text changes while they rest, so what a try brings soon outweighs what was before.
    """

    def __init__(self) -> None:
        self._is_resting = False
        self._left = _FIRST  # steps until it is decided anew
        self._length = _SHORTEST
        self._tokens = self._nodes = self._weight = 0.0
        self._ratios: list[float] = []
        self._beside: dict[bool, list[float]] = {True: [], False: []}  # by whether drafts were made
        self._since_plain = 0

    def rests(self) -> bool:
        """Whether the step to come goes without drafts; asked once a step."""
        if self._left <= 0:
            self._decide()
        self._left -= 1
        return self._is_resting

    def observe(self, drafted: bool, tokens: float, seconds: float, nodes: float = 0.0) -> None:
        """A step without prompts is over. ``tokens``: of it, a request: expected ones, as what was
        emitted is chance; or what a group came nearer to its end by. ``seconds``: of all of it,
        to the beginning of the next one, but for those that its nodes took. ``nodes``: these, in
        ``seconds``."""
        beside = self._beside[drafted]
        beside.append(seconds)
        del beside[:-_BESIDE]
        self._weight *= 1 - 1 / _MEMORY
        if drafted:
            self._since_plain += 1
            self._weight += 1.0
            self._tokens += (tokens - self._tokens) / self._weight
            self._nodes += (nodes - self._nodes) / self._weight

    @property
    def pays(self) -> bool:
        """Whether drafts bring more than they take, as far as that is known."""
        return not self._ratios or self._tokens > (1 + self._nodes) * median(self._ratios)

    def _decide(self) -> None:
        """A rest or a try is over: compare, and choose what follows."""
        if self._is_resting:
            self._is_resting, self._left = False, _PROBE
            self._beside[True].clear()
            return
        self._compare()
        if not self._ratios or self._since_plain >= _AGAIN:
            self._rest_for(_PLAIN)
        elif self.pays:
            self._left, self._length = _PROBE, _SHORTEST
        else:
            self._rest_for(self._length)
            self._length = min(2 * self._length, _LONGEST)

    def _rest_for(self, steps: int) -> None:
        self._is_resting, self._left, self._since_plain = True, steps, 0

    def _compare(self) -> None:
        """Steps with drafts and steps without, if these lie right before those."""
        drafting, plain = self._beside[True], self._beside[False]
        if drafting and plain:
            self._ratios.append(_usual(drafting) / _usual(plain))
            del self._ratios[:-_RATIO_MEMORY]
        plain.clear()


def _usual(seconds: list[float]) -> float:
    """The mean, in which no step counts as much longer than most."""
    most = _OUTLIER * median(seconds)
    return sum(min(each, most) for each in seconds) / len(seconds)
