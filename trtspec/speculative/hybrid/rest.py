"""Rest: whether anything is drafted at all, by what that brings and takes."""

from __future__ import annotations

from statistics import median

from trtspec.speculative.hybrid.glances import Glances

_EACH = 4  # steps with drafts, and as many without, of a comparison
_FIRST_SHARE, _SHARE = 0.02, 0.01
"""Of the time that comparisons may cost: after one that says another thing than the one before it
did, and after one that confirms that."""

_TEXT_SHARE = 0.015  # the same where most texts are new since the last comparison

_SHORTEST, _LONGEST = 16, 1024  # steps between two comparisons
_RECHECK = 4  # steps with drafts between two looks at whether they still pay
_MEMORY = 64.0  # steps, of rests too, that tokens are a mean of
_SUPPOSED, _TRUST = 1.4, 8.0  # tokens a step before any is known, and the steps that this counts
_RATIO_MEMORY = 11  # comparisons that the ratio of seconds is the median of
_CATCH_UP_MEMORY = 5  # comparisons that the price of catching up is the median of
_OUTLIER = 3.0  # times the median of a few steps; a longer step was a pause of the machine


class Rest:
    """Steps with about one number of requests, with drafts and without.

    Looking for drafts, and taking in what became of them, is work in every step, which nothing pays
    for where few drafts are accepted, and no profile says what a shared machine takes for it now.
    So steps with drafts are compared with steps without in their midst, as such a machine changes
    its speed within a fraction of a second: drafting pays while its tokens a step exceed the ratio
    of the seconds. What verifying nodes takes differs from step to step with the nodes, as tokens
    do, and is a mean of more steps. The steps without follow each other and are timed together
    (`pass_over`), as those of a rest do: looking at one takes longer than the rest saves.

    A comparison costs what its worse half loses to the other one. The next one comes when that is a
    small share of the time between the two: soon where drafts bring about what they take, seldom
    where they lose or gain much. Between two comparisons all steps draft or none does, as the last
    one said; where drafts stop to pay by the tokens of late, the next comparison begins at once.
    Texts differ in what drafts bring: where most of them are new, it comes sooner. What a single
    text would bring at rest is seen by `glances`.
    """

    def __init__(self) -> None:
        self._is_resting = False
        self._turns: list[bool] = _turns()  # of the comparison under way, whether each step rests
        self._left = 0  # steps to the next comparison
        self._left_of_new = 0  # the same if most texts are new
        self._begun = 0  # texts, when it was made
        self._since = 0  # steps after the last one
        self._has_drafted = False  # after it
        self.is_comparing = False
        self._seconds: dict[bool, list[float]] = {True: [], False: []}  # compared, by drafting
        self._unseen: list[float] = []  # without drafts, where nobody looked at them
        self._caught_up = 0.0  # seconds of the first step of a comparison, which catches up
        self._tried = 0.0  # seconds of trials in a comparison
        self._tokens, self._weight, self._nodes = _SUPPOSED, _TRUST, 0.0
        self._ratios: list[float] = []
        self._catch_ups: list[float] = []  # what was caught up, as a multiple of a plain step
        self._confirmed = 0
        self.glances = Glances()

    def rests(self, texts: int = 1, begun: int = 0) -> bool:
        """Whether the step to come goes without drafts; asked once a step. ``is_comparing`` then
        says whether that step is one of a comparison, for `observe`. ``texts``: that are written;
        ``begun``: how many were begun so far."""
        self.is_comparing = False
        if not self._turns:
            if self._seconds[True] or self._seconds[False] or self._unseen:
                self._decide()
            self._since += 1
            is_due = self._since > self._length(texts, begun)
            if self._has_drafted and not is_due and self._since % _RECHECK == 0:
                is_due = self._since >= _SHORTEST and not self.pays
            if not is_due:
                return self._is_resting
            self._turns = _turns()
            self._begun = begun
        self.is_comparing = True
        rests = self._turns.pop(0)
        if not self._turns:  # the last one is still to be observed
            self._since, self._has_drafted = 0, False
            self._left = self._left_of_new = _SHORTEST
        return rests

    def num_sure(self, texts: int, begun: int) -> int:
        """How many of the steps to come are for sure like the last one, which went without drafts,
        if no text begins or ends."""
        if self._turns:
            return [*self._turns, False].index(False)
        if self._has_drafted and not self.pays:
            return 0  # the next comparison is due at any time
        return max(self._length(texts, begun) - self._since, 0)

    def pass_over(self, steps: int, seconds: float) -> None:
        """So many steps were like the last one for sure, about which `rests` was not asked; they
        took that many ``seconds`` together. These count in a comparison, in place of what the steps
        took that were looked at."""
        self._weight *= (1 - 1 / _MEMORY) ** steps
        if not self._turns:
            self.glances.pass_over(steps)
            self._since += steps
            return
        del self._turns[:steps]
        each, seen = seconds / steps, self._seconds[False]
        self._unseen += [min(each, _OUTLIER * median(seen)) if seen else each] * steps

    def observe(
        self,
        drafted: bool,
        tokens: float,
        seconds: float,
        nodes: float = 0.0,
        compared: bool = False,
    ) -> None:
        """A step without prompts is over. ``tokens``: that it emitted, a request; or what a
        group came nearer to its end by. ``seconds``: of all of it,
        to the beginning of the next one, but for those that its nodes took. ``nodes``: these, in
        ``seconds``. ``compared``: it is one of a comparison."""
        self._weight *= 1 - 1 / _MEMORY
        if drafted:
            self._weight += 1.0
            self._tokens += (tokens - self._tokens) / self._weight
            self._nodes += (nodes - self._nodes) / self._weight
        if not compared:
            self._has_drafted |= drafted
            return
        if drafted and not self._seconds[False] and not self._caught_up:
            self._caught_up = seconds
        else:
            self._seconds[drafted].append(seconds)

    def spend(self, seconds: float) -> None:
        """A step of a comparison is over that is not observed: so long took what it tried."""
        self._tried += seconds

    @property
    def pays(self) -> bool:
        """Whether drafts bring more than they take, as far as that is known."""
        return self._gain > 1

    @property
    def dearer(self) -> float:
        """How many times as long a step with drafts takes, but for their nodes, as one without."""
        return median(self._ratios) if self._ratios else 1.0

    @property
    def _gain(self) -> float:
        """Tokens a second with drafts, as a multiple of those without."""
        if not self._ratios:
            return 1.0
        return self._tokens / ((1 + self._nodes) * self.dearer)

    def _length(self, texts: int, begun: int) -> int:
        """Steps from the last comparison to the next."""
        is_new = 2 * (begun - self._begun) >= texts
        return self._left_of_new if is_new else self._left

    def _decide(self) -> None:
        """A comparison is over: choose what follows, and when the next one comes."""
        drafting, plain = self._seconds[True], self._unseen or self._seconds[False]
        self._seconds, self._unseen = {True: [], False: []}, []
        caught_up, self._caught_up = self._caught_up, 0.0
        tried, self._tried = self._tried, 0.0
        if not plain:
            return
        usual = _usual(plain)
        if caught_up:
            self._catch_ups.append(caught_up / usual)
            del self._catch_ups[:-_CATCH_UP_MEMORY]
            caught_up = usual * median(self._catch_ups)  # a single one may meet a slow moment
        pays = not self._is_resting
        if drafting:  # else it is left to engines, which were tried at most
            self._ratios.append(_usual(drafting) / usual)
            del self._ratios[:-_RATIO_MEMORY]
            pays = self.pays
        self._confirmed = min(self._confirmed + 1, 8) if pays != self._is_resting else 0
        self._is_resting = not pays
        if pays and drafting:
            lost = (1 + _EACH) * (1 - 1 / self._gain)
        else:
            drafted = len(drafting) * median(drafting) if drafting else 0.0  # without pauses
            took = ((caught_up + drafted) * (1 + self._nodes) + tried) / usual
            lost = took - (len(drafting) + bool(caught_up)) * self._tokens
        share = _SHARE if self._confirmed else _FIRST_SHARE
        least, most = _SHORTEST, _LONGEST
        doubled = min(_SHORTEST << self._confirmed, _LONGEST)
        if pays:  # it may stop to pay at any time
            most = doubled
        if not drafting:  # engines have pauses of their own
            least = doubled
        self._left = min(max(int(lost / share), least), most)
        self._left_of_new = self._left
        if drafting or tried:
            self._left_of_new = min(max(int(lost / _TEXT_SHARE), _SHORTEST), self._left)


def _turns() -> list[bool]:
    """Whether each step of a comparison rests: as many draft before the rest as after it, so that a
    machine that gets slower meanwhile says nothing. The first step catches up with what was left
    out; the first one of the rest is looked at."""
    half = [False] * (_EACH // 2)
    return [False, *half, *[True] * (1 + _EACH), *half]


def _usual(seconds: list[float]) -> float:
    """The mean, in which no step counts as much longer than most."""
    most = _OUTLIER * median(seconds)
    return sum(min(each, most) for each in seconds) / len(seconds)
