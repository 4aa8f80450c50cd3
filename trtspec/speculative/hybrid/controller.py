"""Controller: which drafters run in a step and how many nodes are verified, to be fastest."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trtspec.log import logger
from trtspec.speculative.hybrid.costs import CostCurve
from trtspec.speculative.hybrid.pace import Around, Pace
from trtspec.speculative.hybrid.pause import Pause
from trtspec.speculative.hybrid.routine import Routine, StepsSince

Floats = npt.NDArray[np.float64]

_START, _KEEP = 0.025, 0.005
"""How many more tokens must be expected with an engine that has not been in use, or has: to change
the way of working costs time, and requests whose drafts fare differently end one by one, which
leaves smaller batches than a step's own figures show."""

_WHOLE = 0.01
"""How many more tokens must be expected of verifying a part of the nodes than of all. With less to
gain, that a node is not worth its row is often an error of the estimates, and it costs more time to
tell which are than it saves."""

_CLOSE = 0.15
"""How many more tokens with drafts than without leave it at that: with fewer, what a step without
drafts takes is looked at once in a while. Rows that were verified say little of fewer rows."""

_WARM_UP = 3  # steps at the start in which everything drafts, and is verified if only that tells
_REST = 16  # steps that are taken like the one before, without weighing what does not pay
_HELD = 3  # the same with the engines that pay: what weighs them has left the caches each time
_SETTLED = 16  # steps that a new way of working must last to be reported


@dataclass(frozen=True)
class Load:
    """A step before drafting: requests that generate, and rows fed without any draft: one of each,
    and those of prompts."""

    requests: int
    rows: int


@dataclass(frozen=True)
class Outlook:
    """What a drafter that costs engine time is expected to give this step.

    chances [B, W]: those of the best nodes of each request, falling along a row. None: nothing is
    known of it yet. seconds: what its call should take, with a share of what it has to catch up.
    upkeep: seconds a step that its use takes besides, by what it is fed of prompts. first_step: the
    same of the first step of its rollout alone, if it can be left at that.
    """

    chances: Floats | None
    seconds: float
    upkeep: float = 0.0
    first_step: Outlook | None = None

    def of(self, first_step_only: bool) -> Outlook:
        """That of the first step alone, which must be known, or of all."""
        if not first_step_only:
            return self
        assert self.first_step is not None, "what is chosen was offered"
        return self.first_step


class Choice(NamedTuple):
    """An engine that drafts, by its place, and how much of its rollout."""

    engine: int
    first_step_only: bool = False


class Repeat(NamedTuple):
    """A step that is taken like the one before it, with the same engines. verifies_all: all that
    the only engine drafts is verified."""

    choices: tuple[Choice, ...]
    verifies_all: bool


@dataclass(frozen=True)
class Trial:
    """A request that drafts were tried with. nodes: those of its tree that were verified. gain:
    tokens that it emitted beyond what was expected without the trial. seconds: of drafting."""

    nodes: int
    gain: float
    seconds: float


class Controller:
    """Maximises the expected tokens per second of the whole batch.

    A node is worth verifying while its chance exceeds what the time of its row would bring
    otherwise: the seconds that it adds to the target's call times the tokens per second of late.
    That is the marginal rule for the best mean speed, in which each step is weighed against the
    pace of all, not against its own. A draft engine runs where the nodes that it is expected to add
    are worth more than its call by the same measure. Prompts take the time that they take, so that
    of steps with some says nothing of the pace.

    It decides by what earlier steps told and what drafters say of their nodes, never by what
    becomes of the nodes at hand.
    """

    def __init__(self, target: CostCurve, adapts: bool = True, sees_all: bool = True) -> None:
        """``adapts``: choose what drafts and how many nodes are verified, else all do and are.
        ``sees_all``: outcomes of nodes that were not verified are known as well; if not, more are
        verified once in a while."""
        self._target = target
        self._adapts = adapts
        self._sees_all = sees_all
        self._paces: dict[int, Pace] = {}
        self._pauses: list[Pause] = []
        self._verifying = Pause()
        self._tried: list[tuple[Pause, Outlook]] = []  # in the step under way, for trying's sake
        self._in_use: frozenset[Choice] = frozenset()  # that were worth their call of late
        self._is_trying_rows = False
        self._otherwise = 0.0  # what the step is worth as it would be otherwise
        self._arounds: dict[int, Around] = {}
        self._steps = 0
        self._routine = Routine()
        self._counted = StepsSince()
        self._stands_for = 1  # steps: the one whose nodes were counted last, and those before it
        self._is_whole = False  # of the nodes counted last, all were worth their rows
        self._regime: str | None = None
        self._new_regime: tuple[str, int] = "", 0

    @property
    def engines_in_use(self) -> set[int]:
        """Those that were worth their call when they were last weighed, without a prompt beside."""
        return {choice.engine for choice in self._in_use}

    def rests(self, requests: int) -> bool:
        """Whether a step in which so many requests generate, for which there is no draft yet, goes
        without drafts as the one before it did. Then the step is not weighed."""
        if self._in_use or not self._routine.goes_on(requests):
            return False
        self._leave_uncounted()
        return True

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
        """Begin a step: which engines draft, where the other drafters gave nodes of the chances
        ``cheap [B, W]`` (each row falling; unread without engines), and which draft for a single
        request, to see what becomes of it."""
        steps = self._routine.end()
        self._steps += steps
        self._tried = []
        while len(self._pauses) < len(engines):
            self._pauses.append(Pause())
        if not engines or cheap is None:
            return (), ()
        if not self._adapts or self._steps <= _WARM_UP:
            return tuple(map(Choice, range(len(engines)))), ()
        best, is_close = self._best(load, cheap, engines)
        # Beside a prompt's rows a draft costs another time: that says nothing of the next step.
        is_usual = load.rows == load.requests
        is_settled = is_usual and self._in_use == set(best)
        if is_usual:
            self._in_use = frozenset(best)
        if is_usual and is_close and self._around(load).needs_plain:
            return (), ()
        in_use = {choice.engine: choice for choice in best}
        chosen, tried = [], []
        usual = self._target.at(load.rows) + self._around(load).seconds(False)
        waited = usual * steps
        for i, (outlook, pause) in enumerate(zip(engines, self._pauses, strict=True)):
            if i in in_use:
                pause.restart()
                chosen.append(in_use[i])
            elif outlook.chances is None:
                chosen.append(Choice(i))
            elif pause.is_over(waited, outlook.seconds):
                self._tried.append((pause, outlook))
                tried.append(i)
        if is_usual and not chosen and not tried and usual > 0 and not cheap.any():
            lefts = [
                pause.left(outlook.seconds)
                for outlook, pause in zip(engines, self._pauses, strict=True)
            ]
            self._routine.set(load.requests, min(int(min(lefts) / usual), _REST))
        elif best and is_settled and len(chosen) == len(best) and not tried:
            self._routine.set(load.requests, _HELD)
        return tuple(chosen), tuple(tried)

    def count(self, load: Load, chances: Floats, spent: float) -> int:
        """How many of the batch's nodes to verify, of which ``chances [n]`` are the falling ones of
        all; ``spent``: the seconds of drafting them."""
        most = len(chances)
        worths, tokens, seconds = self._worths(load, chances, spent)
        best = most
        if self._adapts and (self._sees_all or self._steps > _WARM_UP):
            best = int(worths.argmax())
            if worths[best] - worths[most] < _WHOLE * tokens[best]:
                best = most
        self._is_whole = best == most
        self._stands_for = self._counted.take()
        if not self._tried and load.rows == load.requests:
            own = float(seconds[best]) / self._target.slowness
            self._pace(load).observe(float(tokens[best]), own, self._stands_for)
            if logger.isEnabledFor(logging.DEBUG):
                logger.debug(
                    "verifying %d of %d nodes of %d requests: %.2f tokens expected in %.2f ms",
                    *(best, most, load.requests, tokens[best], 1e3 * seconds[best]),
                )
        self._is_trying_rows = False
        if not self._sees_all and best < most:
            # Nothing is learned of what is not verified: now and then, try one more.
            row = float(seconds[best + 1] - seconds[best])
            if not self._tried and self._verifying.is_over(float(seconds[best]), row):
                self._is_trying_rows, self._otherwise = True, float(worths[best])
            if self._tried or self._is_trying_rows:
                best += 1
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
        """A step without prefill verified `nodes`, for which `spent` seconds were drafted, and
        emitted that many tokens. `rest`: the seconds around drafting and verifying. `tried`: what
        became of the request that `plan` had drafts tried with."""
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
        """Log what a step did if that is another way of working than before, and stays."""
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

    def _best(
        self, load: Load, cheap: Floats, engines: Sequence[Outlook]
    ) -> tuple[list[Choice], bool]:
        """The engines that are worth their calls, of those that something is known of, and whether
        a step without them is worth nearly as much."""
        left: dict[Choice, Outlook] = {}
        for i, outlook in enumerate(engines):
            if outlook.chances is not None:
                left[Choice(i)] = outlook
                if outlook.first_step is not None:
                    left[Choice(i, True)] = outlook.first_step
        best: dict[Choice, Outlook] = {}
        plain = otherwise = self._gain(load, cheap, [], 0.0)
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
        return list(best), otherwise - plain < _CLOSE * load.requests

    def _gain(self, load: Load, cheap: Floats, engines: Sequence[Outlook], dearer: float) -> float:
        """What a step with these engines is worth with a share ``dearer`` fewer tokens than
        are expected of it."""
        chances = cheap
        for outlook in engines:
            assert outlook.chances is not None
            chances = _either(chances, outlook.chances)
        flat = np.sort(chances, axis=None)[::-1]
        spent = sum(outlook.seconds + outlook.upkeep for outlook in engines)
        worths, _, _ = self._worths(load, flat, spent, dearer)
        return float(worths.max())

    def _worths(
        self, load: Load, chances: Floats, spent: float, dearer: float = 0.0
    ) -> tuple[Floats, Floats, Floats]:
        """Of a step that verifies the first 0 to n nodes: what it is worth, the tokens that are
        expected of it and its seconds, each [n + 1]."""
        count = len(chances) + 1
        tokens = np.full(count, float(load.requests))
        tokens[1:] += chances.cumsum()
        tokens *= 1 - dearer
        seconds = self._target.over(np.arange(load.rows, load.rows + count))
        seconds += spent + self._around(load).seconds(spent > 0)
        return tokens - self._tokens_per_second(load) * seconds, tokens, seconds

    def _around(self, load: Load) -> Around:
        """That of about as many requests."""
        return self._arounds.setdefault(_batch(load), Around())

    def _tokens_per_second(self, load: Load) -> float:
        """What time brings: the pace of late at the machine's speed of now, but never less than
        that of steps without drafts, which there may always be; 0 before anything was measured."""
        pace = self._pace(load).tokens_per_second / self._target.slowness
        plain = self._target.at(load.requests) + self._around(load).seconds(False)
        return max(pace, load.requests / plain if plain else 0.0)

    def _pace(self, load: Load) -> Pace:
        """That of about as many requests."""
        return self._paces.setdefault(_batch(load), Pace())


def _either(a: Floats, b: Floats) -> Floats:
    """Chances of the nodes of two drafters together, as if the better of each rank counted."""
    if a.shape[1] < b.shape[1]:
        a, b = b, a
    if not b.shape[1]:
        return a
    both = a.copy()
    np.maximum(a[:, : b.shape[1]], b, out=both[:, : b.shape[1]])
    return both


def _batch(load: Load) -> int:
    """The same for about as many requests."""
    return bisect_left(_BATCHES, load.requests)


_BATCHES = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256]
