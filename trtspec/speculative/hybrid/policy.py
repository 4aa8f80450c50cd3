"""Policy: which drafters are asked in a step, and how many of their nodes are verified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from trtspec.executor.request import Request
from trtspec.ops.tree import TokenTree
from trtspec.speculative.hybrid.candidates import either, falling, ranked
from trtspec.speculative.hybrid.costs import CostTable, Floats, Mean
from trtspec.speculative.hybrid.member import Member
from trtspec.speculative.hybrid.probe import STEPS as PROBE_STEPS

Rollout = tuple[Member, bool]
"""An engine that drafts, and whether its rollout is left at its first step."""

_PACE_HALF_LIFE = 24.0  # steps: fewer are noise, more miss that a text changes
_MARGIN = 0.01  # share of more tokens that another engine must promise: less goes to and fro
_UNSEEN_EVERY = 32  # steps, in one of which a node more is verified where nothing else tells of it
_LONGEST_BETWEEN = 0.5  # of a step: more time to the next one is waiting for requests


class Step:
    """requests: those that generate. rows: that are fed without drafts, of prompts too. context:
    cached tokens. nodes, tokens: verified, emitted. Then times, and seconds of members."""

    def __init__(self, requests: int, rows: int, context: int = 0, began: float = 0.0) -> None:
        self.requests, self.rows, self.context, self.began = requests, rows, context, began
        self.drafted = self.judged = self.ended = self.drafting = 0.0
        self.nodes = self.tokens = 0

    @property
    def is_pure(self) -> bool:
        """Whether no prompt is fed."""
        return 0 < self.requests == self.rows


class Policy:
    """Takes what brings the most tokens a second: no drafter, one, or several.

    A member without an engine is asked while what its nodes are worth, in the mean of late, exceeds
    the price of asking. By what those drafted it is chosen which engines draft as well, and a node
    is verified while its chance exceeds the price of its row: the seconds that the row adds to the
    target's call, times the tokens a second of late. This marginal rule gives the best mean speed:
    each step is weighed against the pace of all steps, not against its own. What is not asked comes
    back by its `Probe`.

    Decisions rest on earlier steps and on what drafters say of their nodes, never on what becomes
    of the nodes at hand. Seconds are those of the machine at its usual speed.
    """

    def __init__(self, target: CostTable, members: Sequence[Member], sees_all: bool) -> None:
        """``sees_all``: False: outcomes are known of verified nodes alone."""
        self._target, self._members, self._sees_all = target, tuple(members), sees_all
        self._cheap = [member for member in members if not member.has_engine]
        self._engines = [member for member in members if member.has_engine]
        self._around = {drafts: CostTable(target.speed, False) for drafts in (False, True)}
        # Of a step of late, by those of one without drafts.
        self._tokens, self._seconds = Mean(_PACE_HALF_LIFE), Mean(_PACE_HALF_LIFE)
        self._chosen: tuple[Rollout, ...] = ()
        self._weighed = 0  # requests of the step in which these were chosen; 0: to be chosen anew
        self._probed: list[Member] = []  # by the probe under way, or one that is to be judged
        self._left = self._num_steps = 0  # steps of the probe
        self._lost = 0.0

    def skips(self, requests: int) -> bool:
        """Whether nothing drafts in the step to come; asked once a step."""
        self._num_steps += 1
        step = Step(requests, requests)
        off = [member for member in self._members if member.idle and not self._is_on(member, step)]
        if self._left:
            self._left -= 1
        elif not self._probed and (due := [member for member in off if member.probe.passes()]):
            cheap = [member for member in due if not member.has_engine]
            self._probed, self._left, self._lost = cheap or due[:1], PROBE_STEPS, 0.0
        for member in self._members:
            member.idle += 1
        if self._probed or len(off) < len(self._members) or self._weighed != requests:
            return False
        self._tokens.observe(1.0)
        self._seconds.observe(1.0)
        return True

    def asks(self, step: Step) -> list[Member]:
        """The members without an engine that are asked now."""
        probed = self._probed if self._left else ()
        return [member for member in self._cheap if member in probed or self._is_on(member, step)]

    def choose(
        self, step: Step, requests: Sequence[Request], drafts: Mapping[Member, list[TokenTree]]
    ) -> list[Rollout]:
        """The engines that draft beside those members that have."""
        ids = [request.id for request in requests]
        usual: dict[Rollout, tuple[Floats, float]] = {
            (engine, first): (
                engine.acceptance.usual(ids, first),
                engine.seconds(requests, first, step.context),
            )
            for engine in self._engines
            for first in (engine.depths if engine.is_known else ())
        }
        options: list[tuple[Rollout, ...]] = [(), *((rollout,) for rollout in usual)]
        if len({engine for engine, _ in usual}) > 1:
            options.append(tuple(rollout for rollout in usual if not rollout[1]))
        found: list[list[tuple[float, float]]] = []
        chances = np.zeros((len(ids), 0))
        for member in (None, *drafts):
            chances = chances if member is None else either(chances, ranked(drafts[member]))
            found.append([])
            for option in options:
                nodes, spent = chances, 0.0
                for rollout in option:
                    nodes, spent = either(nodes, usual[rollout][0]), spent + usual[rollout][1]
                expected = self._best(step, falling(nodes), spent, bool(drafts or option))
                is_new = any(rollout not in self._chosen for rollout in option)
                found[-1].append((expected[1] * (1 - _MARGIN * is_new), expected[2] or 1.0))
        # The pace of late may be out of reach; then the fastest is the best. Not so beside copies,
        # which come and go: a slow step waits for the next one.
        pace = self._pace(step)
        if not drafts:
            pace = min(pace, max(tokens / took for tokens, took in found[-1]))
        worths = [[tokens - pace * took for tokens, took in each] for each in found]
        best = options[worths[-1].index(max(worths[-1]))]
        for member, less, more in zip(drafts, worths, worths[1:], strict=False):
            if step.is_pure:
                member.worth.observe((max(more) - max(less)) / step.requests)
        if step.is_pure:
            self._chosen, self._weighed = best, step.requests
            on = [member for member in self._members if self._is_on(member, step)]
            for member in on:
                member.probe.restart()
            for member in () if self._left else self._probed:
                member.probe.judge(member in on, self._lost)
            self._probed = self._probed if self._left else []
        probed = self._probed if self._left else ()
        forced = [(e, False) for e in self._engines if not e.is_known or e in probed]
        return [r for r in best if (r[0], False) not in forced] + forced

    def count(self, step: Step, chances: Floats, spent: float) -> int:
        """How many nodes are verified. ``chances``: of all, falling. ``spent``: seconds of drafting
        them."""
        nodes, tokens, seconds = self._best(step, chances, spent, True)
        if step.is_pure and (plain := self._plain(step)):
            self._tokens.observe(tokens / step.requests)
            self._seconds.observe(seconds / plain)
        if not self._sees_all and nodes < len(chances):
            learns = self._left or not all(engine.is_known for engine in self._engines)
            return len(chances) if learns else nodes + (self._num_steps % _UNSEEN_EVERY == 0)
        return nodes

    def close(self, step: Step, now: float) -> None:
        """The next step begins: learn what this one took."""
        if not step.is_pure:
            self._weighed = 0  # other texts go on than before
            for member in () if self._cheap else self._engines:
                member.probe.hasten()  # where nothing else tells of a new text
        elif step.ended:
            verifying, own = step.judged - step.drafted, step.ended - step.began
            own += min(now - step.ended, _LONGEST_BETWEEN * own)
            rows = step.rows + step.nodes
            self._target.observe(verifying, step.requests, rows, step.context)
            around = max(own - verifying - step.drafting, 0.0)
            self._around[step.drafting > 0].observe(around, step.requests, step.requests)
            longer = own / ((self._plain(step) or own) * self._target.speed.value)
            if self._probed and step.drafting > 0:
                self._lost += max(longer - step.tokens / step.requests, (longer - 1) / 4)

    def hasten(self) -> None:
        """A text repeats itself, as those foresee that need no engine."""
        for member in self._cheap:
            member.probe.hasten()

    def _is_on(self, member: Member, step: Step) -> bool:
        """Whether a member pays by what is known of it, or has to be known."""
        if not member.is_known or member.has_engine:
            return not member.is_known or any(member is engine for engine, _ in self._chosen)
        asking = member.costs[False].at(step.requests, step.requests)
        return bool(member.worth.value > self._pace(step) * asking / step.requests)

    def _best(
        self, step: Step, chances: Floats, spent: float, drafts: bool
    ) -> tuple[int, float, float]:
        """The best number of nodes, of those with these falling ``chances``, with the tokens and
        seconds of such a step."""
        pace = self._pace(step)
        costs = self._target.run(step.requests, step.rows, len(chances) + 1, step.context)
        tokens = np.concatenate(([0.0], np.cumsum(chances))) + step.requests
        nodes = int(np.argmax(tokens - pace * costs)) if pace else len(chances)
        took = costs + spent + self._around[drafts].at(step.requests, step.requests)
        if tokens[nodes] < pace * took[nodes]:
            nodes = int(np.argmax(tokens / took))
        return nodes, float(tokens[nodes]), float(took[nodes])

    def _pace(self, step: Step) -> float:
        """Tokens a second of late: never below those without drafts, which are always possible."""
        plain, speed_up = self._plain(step), self._tokens.value / (self._seconds.value or 1.0)
        return max(speed_up, 1.0) * step.requests / plain if plain else 0.0

    def _plain(self, step: Step) -> float:
        """Seconds of a step without drafts and prompts."""
        target = self._target.at(step.requests, step.requests, step.context)
        return target + self._around[False].at(step.requests, step.requests) if target else 0.0
