"""Controller: which drafters run in a step and how many nodes are verified, to be fastest."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from trtspec.log import logger
from trtspec.speculative.hybrid.costs import CostCurve
from trtspec.speculative.hybrid.outlook import Choice, Floats, Load, Outlook, Repeat, Trial
from trtspec.speculative.hybrid.pace import Around, Pace
from trtspec.speculative.hybrid.pause import Pause
from trtspec.speculative.hybrid.routine import Routine, StepsSince

_START, _KEEP = 0.025, 0.005
"""The share of more tokens that must be expected before an engine comes into use, and to keep it in
use: changing the way of working costs time, and requests end one by one, which leaves smaller
batches than a step's own figures show."""

_WHOLE = 0.01
"""The share of more tokens that must be expected before a part of the nodes is verified in place of
all. Smaller gains are often errors of the estimates, and choosing nodes takes time."""

_WARM_UP = 3  # steps at the start in which everything drafts, and is verified if only that tells
_REST = 16  # most steps without engines that follow a weighed one
_HELD = 3  # steps with the same engines that follow a weighed one: weighing is slow, out of caches
_SETTLED = 16  # steps that a new way of working must last to be reported


class Controller:
    """Maximises the expected tokens per second of the whole batch.

    A node is verified while its chance exceeds the price of its row: the seconds that the row adds
    to the target's call, times the tokens per second of late. This marginal rule gives the best
    mean speed: each step is weighed against the pace of all steps, not against its own. An engine
    drafts where the nodes that it is expected to add exceed the price of its call. Steps with
    prompts say nothing of the pace, as prompts take the same time either way.

    Where tokens of the requests are not worth the same, chances are given times their worths, and
    all that is called tokens is worth.

    is_learning: an engine of which too little is known drafts in the step weighed last.
    Decisions rest on earlier steps and on what drafters say of their nodes, never on what becomes
    of the nodes at hand. A step is either *weighed*, by `plan`, `count` and `report`, or taken like
    the step before it, where `rests`, `leaves_engines` or `repeat` says so.
    """

    def __init__(self, target: CostCurve, adapts: bool = True, sees_all: bool = True) -> None:
        """``adapts``: False: every engine drafts, and every node is verified. ``sees_all``: False:
        outcomes are known of verified nodes alone, so that more nodes are verified at times."""
        self._target = target
        self._adapts = adapts
        self._sees_all = sees_all
        self._paces: dict[int, Pace] = {}
        self._pauses: list[Pause] = []
        self._verifying = Pause()
        self._tried: list[tuple[Pause, Outlook]] = []  # the trials of the step under way
        self._in_use: frozenset[Choice] = frozenset()  # the engines that were worth their call
        self.is_learning = self._is_trying_rows = False  # a node more is verified than is worth it
        self._otherwise = 0.0  # what the step would be worth without that node
        self._arounds: dict[int, Around] = {}
        self._steps = 0
        self._routine = Routine()
        self._counted = StepsSince()
        self._stands_for = 1  # steps: the one whose nodes were counted last, and those before it
        self._is_whole = False  # of the nodes counted last, all were worth their rows
        self._verified = 0  # of them
        self._regime: str | None = None
        self._new_regime: tuple[str, int] = "", 0

    @property
    def engines_in_use(self) -> set[int]:
        """The engines that were worth their call when a step without prompts was last weighed."""
        return {choice.engine for choice in self._in_use}

    def num_rests(self, requests: int) -> int:
        """For how many of the steps to come no engine is weighed, if so many requests generate, as
        none was worth its call in the last one, whatever others draft."""
        return 0 if self._in_use else self._routine.num_left(requests)

    def rests(self, requests: int) -> bool:
        """Whether the step under way is one of them, and goes without drafts if there is none."""
        if not self.num_rests(requests):
            return False
        self.leave_out()
        return True

    def leaves_engines(self, requests: int) -> bool:
        """The same of a step for which others drafted: `plan` is left out, `count` is not."""
        return not self._in_use and self._routine.goes_on(requests)

    def leave_out(self) -> None:
        """The step under way goes without drafts, whatever the controller would say."""
        self._routine.leave_out()
        self._leave_uncounted()

    def glance(self) -> None:
        """No engine is weighed for the step under way, whose nodes are counted. It stands for
        itself alone: those before it went without drafts."""
        self._routine.leave_out()
        self._counted.take()

    def repeat(self, requests: int) -> Repeat | None:
        """How a step in which so many requests generate is taken if the engines draft that did in
        the one before it; `plan` is left out then. None: the step has to be weighed."""
        if not self._in_use or not self._routine.goes_on(requests):
            return None
        return Repeat(tuple(sorted(self._in_use)), self._is_whole and len(self._in_use) == 1)

    def verify_all(self) -> None:
        """All that is drafted in the step under way is verified, as a `Repeat` said. `count` and
        `report` are left out then."""
        self._leave_uncounted()

    def plan(
        self, load: Load, cheap: Floats | None, engines: Sequence[Outlook]
    ) -> tuple[tuple[Choice, ...], tuple[int, ...]]:
        """Weigh a step: which engines draft for all requests, and which draft for a single one, as
        a trial. ``cheap [B, W]``: the chances of the nodes that the other drafters gave, falling
        along a row; not read without engines."""
        steps = self._routine.end()
        self._steps += steps
        self._tried, self.is_learning = [], False
        while len(self._pauses) < len(engines):
            self._pauses.append(Pause())
        if not engines or cheap is None:
            return (), ()
        if not self._adapts or self._steps <= _WARM_UP:
            return tuple(map(Choice, range(len(engines)))), ()
        best = self._best(load, cheap, engines)
        # Beside a prompt's rows a draft costs another time: that says nothing of the next step.
        is_usual = load.rows == load.requests
        is_settled = is_usual and self._in_use == set(best)
        if is_usual:
            self._in_use = frozenset(best)
        in_use = {choice.engine: choice for choice in best}
        chosen, tried = [], []
        usual = self._target.at(load.rows) + self._around(load).seconds(False)
        waited = usual * steps
        for i, (outlook, pause) in enumerate(zip(engines, self._pauses, strict=True)):
            if i in in_use:
                pause.restart()
                chosen.append(in_use[i])
            elif outlook.chances is None:
                # Where about a node of each is verified, deeper ones seldom tell anything.
                first_step_only = self._verified <= load.requests and outlook.first_step is not None
                chosen.append(Choice(i, first_step_only))
                self.is_learning = True
            elif pause.is_over(waited, outlook.seconds):
                self._tried.append((pause, outlook))
                tried.append(i)
        none_pays = is_usual and not chosen and not tried and usual > 0
        if none_pays and not (cheap.any() and self._best(load, np.zeros_like(cheap), engines)):
            lefts = [
                pause.left(outlook.seconds)
                for outlook, pause in zip(engines, self._pauses, strict=True)
            ]
            self._routine.set(load.requests, min(int(min(lefts) / usual), _REST))
        elif best and is_settled and len(chosen) == len(best) and not tried:
            self._routine.set(load.requests, _HELD)
        return tuple(chosen), tuple(tried)

    def count(self, load: Load, chances: Sequence[float], spent: float) -> int:
        """How many nodes of the batch are verified. ``chances``: of all nodes, falling. ``spent``:
        seconds of drafting them."""
        most = len(chances)
        worths, tokens, seconds = self._worths(load, chances, spent)
        best = most
        if self._adapts and (self._sees_all or self._steps > _WARM_UP):
            best = worths.index(max(worths))
            if worths[best] - worths[most] < _WHOLE * tokens[best]:
                best = most
        self._is_whole = best == most
        self._stands_for = self._counted.take()
        if not self._tried and load.rows == load.requests:
            own = seconds[best] / self._target.slowness
            self._pace(load).observe(tokens[best], own, self._stands_for)
            if logger.isEnabledFor(logging.DEBUG):
                logger.debug(
                    "verifying %d of %d nodes of %d requests: %.2f tokens expected in %.2f ms",
                    *(best, most, load.requests, tokens[best], 1e3 * seconds[best]),
                )
        self._is_trying_rows = False
        if not self._sees_all and best < most:
            # Nothing is learned of what is not verified: now and then, try one more.
            row = seconds[best + 1] - seconds[best]
            learns = bool(self._tried) or self.is_learning
            if not learns and self._verifying.is_over(seconds[best], row):
                self._is_trying_rows, self._otherwise = True, worths[best]
            if learns or self._is_trying_rows:
                best += 1
        self._verified = best
        return best

    def observe(
        self,
        load: Load,
        nodes: int,
        tokens: int,
        spent: float,
        rest: float,
        tried: Trial | None = None,
    ) -> None:
        """A step without prompts is over. ``nodes``: verified. ``tokens``: emitted. ``spent``:
        seconds of drafting. ``rest``: seconds around drafting and verifying. ``tried``: what became
        of the trial that `plan` asked for."""
        if tried is None:
            self._around(load).observe(spent > 0, rest)
        pace = self._tokens_per_second(load)
        if self._is_trying_rows:
            row = self._target.at(load.rows + nodes) - self._target.at(load.rows + nodes - 1)
            verifying = self._target.at(load.rows + nodes)
            worth = tokens - pace * (spent + self._around(load).seconds(spent > 0) + verifying)
            price = pace * row
            self._verifying.judge(worth - self._otherwise + price, price, row)
        if tried is None:
            return
        usual = self._target.at(load.rows)
        own = tried.seconds + self._target.at(load.rows + tried.nodes) - usual
        # As if all requests had been drafted for, and had fared as this one.
        rows = self._target.at(load.rows + tried.nodes * load.requests) - usual
        for pause, outlook in self._tried:
            pause.judge(load.requests * tried.gain, pace * (outlook.seconds + rows), own)

    def report(self, load: Load, engines: Sequence[str], verified: int) -> None:
        """Log which engines draft and whether nodes are verified, if that has changed for good."""
        way = " and ".join(engines) if engines else "no draft engine"
        regime = f"{way}, {'verifying drafts' if verified else 'verifying nothing'}"
        if regime == self._regime:
            self._new_regime = regime, 0
            return
        name, steps = self._new_regime
        self._new_regime = regime, self._stands_for + (steps if name == regime else 0)
        if self._new_regime[1] < _SETTLED:
            return
        self._regime = regime
        pace = self._tokens_per_second(load)
        row = self._target.at(load.rows + 1) - self._target.at(load.rows)
        logger.info(
            "speculation: %s; %d requests at %.1f tokens/s, a step without drafts %.2f ms, "
            "a node %.3f ms and so worth it from a chance of %.3f",
            regime,
            load.requests,
            pace,
            1e3 * self._target.at(load.rows),
            1e3 * row,
            row * pace,
        )

    def _leave_uncounted(self) -> None:
        """The nodes of the step under way are not counted."""
        self._counted.leave_out()
        self._is_trying_rows = False

    def _best(self, load: Load, cheap: Floats, engines: Sequence[Outlook]) -> list[Choice]:
        """The engines that are worth their calls, of those with known chances."""
        left: dict[Choice, Outlook] = {}
        for i, outlook in enumerate(engines):
            if outlook.chances is not None:
                left[Choice(i)] = outlook
                if outlook.first_step is not None:
                    left[Choice(i, True)] = outlook.first_step
        best: dict[Choice, Outlook] = {}
        otherwise = self._gain(load, cheap, [], 0.0)
        while left:  # add the one that helps most, as long as one does
            gains = {}
            for choice, outlook in left.items():
                dearer = sum(_KEEP if c in self._in_use else _START for c in (*best, choice))
                gains[choice] = self._gain(load, cheap, [*best.values(), outlook], dearer)
            most = max(gains, key=gains.__getitem__)
            if gains[most] <= otherwise:
                break
            otherwise = gains[most]
            best[most] = left[most]
            left = {c: outlook for c, outlook in left.items() if c.engine != most.engine}
        return list(best)

    def _gain(self, load: Load, cheap: Floats, engines: Sequence[Outlook], dearer: float) -> float:
        """What a step with these engines is worth, if it brings a share ``dearer`` fewer tokens
        than expected."""
        chances = cheap
        for outlook in engines:
            assert outlook.chances is not None
            chances = _either(chances, outlook.chances)
        flat = np.sort(chances, axis=None)[::-1]
        spent = sum(outlook.seconds + outlook.upkeep for outlook in engines)
        return max(self._worths(load, flat.tolist(), spent, dearer)[0])

    def _worths(
        self, load: Load, chances: Sequence[float], spent: float, dearer: float = 0.0
    ) -> tuple[list[float], list[float], list[float]]:
        """Of a step that verifies the first 0 to n nodes: its worth, its expected tokens and its
        seconds, n + 1 of each. Lists: nodes are few, and arrays slower out of the caches."""
        kept, around = 1 - dearer, spent + self._around(load).seconds(spent > 0)
        tokens = [(load.requests + more) * kept for more in accumulate(chances, initial=0.0)]
        seconds = [call + around for call in self._target.run(load.rows, len(tokens))]
        pace = self._tokens_per_second(load)
        worths = [t - pace * s for t, s in zip(tokens, seconds, strict=True)]
        return worths, tokens, seconds

    def _around(self, load: Load) -> Around:
        """The times around steps of about as many requests."""
        return self._arounds.setdefault(batch_of(load.requests), Around())

    def _tokens_per_second(self, load: Load) -> float:
        """The pace of late, at the machine's present speed. Steps without drafts are always
        possible, so that it is never below theirs. 0 before anything was measured."""
        pace = self._pace(load).tokens_per_second / self._target.slowness
        plain = self._target.at(load.requests) + self._around(load).seconds(False)
        return max(pace, load.requests / plain if plain else 0.0)

    def _pace(self, load: Load) -> Pace:
        """The pace of steps of about as many requests."""
        return self._paces.setdefault(batch_of(load.requests), Pace())


def _either(a: Floats, b: Floats) -> Floats:
    """Chances of the nodes of two drafters together, as if the better of each rank counted."""
    if a.shape[1] < b.shape[1]:
        a, b = b, a
    if not b.shape[1]:
        return a
    both = a.copy()
    np.maximum(a[:, : b.shape[1]], b, out=both[:, : b.shape[1]])
    return both


def batch_of(requests: int) -> int:
    """The same for about as many requests."""
    return bisect_left(_BATCHES, requests)


_BATCHES = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256]
