"""Policy: which drafters are asked in a step, and how many of their nodes are verified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

import numpy as np

from trtspec.executor.step.request import Request
from trtspec.ops.draft_batch import DraftBatch
from trtspec.speculative.hybrid.costs import CostTable, Floats, Mean
from trtspec.speculative.hybrid.member import Member

_PACE_HALF_LIFE = 24.0  # steps: fewer are noise, more miss that a text changes
_LONGEST_BETWEEN = 0.5  # of a step: more time to the next one is waiting for requests


class Step:
    """requests: those that generate. rows: fed without drafts, including prompts. context: cached
    tokens. plain: seconds of a step without drafts and prompts; 0.0: unknown. spent: expected time
    of drafting. nodes, tokens: verified, emitted. asked: who drafted. costs: by nodes verified."""

    def __init__(self, requests: int, rows: int, context: int, began: float, plain: float) -> None:
        self.requests, self.rows, self.context = requests, rows, context
        self.is_pure = 0 < requests == rows  # no prompt is fed
        self.began, self.plain, self.spent, self.ended = began, plain, 0.0, 0.0
        self.nodes = self.tokens = 0
        self.asked: list[Member] = []
        self.costs: Floats = np.zeros(0)


class Policy:
    """Chooses what brings the most tokens per second: no drafter, one, or several.

    A member without an engine is asked while the recent value of its nodes exceeds the price of
    asking. Given what those drafted, it is decided which engines draft as well. A node is verified
    while its probability exceeds the price of its row: the seconds that the row adds to the
    target's call, times the current tokens per second. This marginal rule maximises mean speed.
    Unknown drafters are assumed to be good, so that an engine is tried where it would pay if it
    were; the outcome of its drafts replaces that optimism, which its `Probe` renews.

    Decisions rest on earlier steps and on what drafters say about their nodes, never on the outcome
    of the nodes at hand. Seconds are those of the machine at its usual speed.
    """

    def __init__(self, target: CostTable, members: Sequence[Member]) -> None:
        self._target, self._members = target, tuple(members)
        self._speed_up = Mean(_PACE_HALF_LIFE)  # of steps of late, over those without drafts
        self._chosen: tuple[Member, ...] = ()
        self._weighed = 0  # requests of the step in which these were chosen; 0: to be chosen anew

    def step(self, requests: int, rows: int, context: int = 0, began: float = 0.0) -> Step:
        """A step begins."""
        return Step(requests, rows, context, began, self._target.at(requests, requests, context))

    def pace(self, step: Step) -> float:
        """Current tokens per second, at least those without drafts; 0.0: unknown."""
        speed_up = max(self._speed_up.value, 1.0)
        return speed_up * step.requests / step.plain if step.plain else 0.0

    def skips(self, requests: int) -> bool:
        """Whether nothing drafts in the coming step; asked once per step."""
        step = self.step(requests, requests)
        off = [m for m in self._members if m.idle and not self._is_on(m, step)]
        for member in self._members:
            member.idle += 1
            if member in off and member.probe.passes():
                self._weighed = 0
        if len(off) < len(self._members) or self._weighed != requests:
            return False
        self._speed_up.observe(1.0)
        return True

    def asks(self, step: Step) -> list[Member]:
        """The members without an engine that are asked now."""
        return [m for m in self._members if not m.has_engine and self._is_on(m, step)]

    def choose(
        self, step: Step, requests: Sequence[Request], drafts: Mapping[Member, DraftBatch]
    ) -> Sequence[Member]:
        """The engines that draft in addition to those members."""
        engines = [member for member in self._members if member.has_engine]
        usual = {e: e.usual(requests) for e in engines}
        seconds = {e: e.seconds(requests, step.context) for e in engines}
        options = list(dict.fromkeys([(), *((engine,) for engine in engines), tuple(engines)]))
        worths: list[list[float]] = []  # by the drafts that count, and by option
        chances = np.zeros((len(requests), 0))
        for each in (None, *drafts.values()):
            chances = chances if each is None else _either(chances, each.chances)
            worths.append([])
            for option in options:
                nodes = reduce(_either, map(usual.__getitem__, option), chances)
                spent = sum(map(seconds.__getitem__, option))
                _, tokens, took = self._best(step, nodes, spent)
                worths[-1].append(tokens - self.pace(step) * took)
        best = options[worths[-1].index(max(worths[-1]))]
        for member, less, more in zip(drafts, worths, worths[1:], strict=False):
            member.worth.observe((max(more) - max(less)) / len(requests))
        self._chosen, self._weighed = best, step.requests
        step.spent = sum(member.seconds(requests, step.context) for member in (*drafts, *best))
        return best

    def count(self, step: Step, chances: Floats) -> int:
        """How many nodes are verified, given these ``chances`` (see `DraftBatch`)."""
        nodes, tokens, seconds = self._best(step, chances, step.spent)
        if step.is_pure and step.plain:
            self._speed_up.observe(tokens / step.requests / (seconds / step.plain))
        # A try tells what drafts and their rows are worth, whatever is believed of them.
        tried = any(member.probe.hope >= 0.5 for member in step.asked)
        return int(np.count_nonzero(chances)) if tried else nodes

    def close(self, step: Step, now: float) -> None:
        """The next step begins: learn how long this one took."""
        if not step.is_pure:
            for member in self._members:
                member.probe.hasten(at_once=not member.has_engine)
        elif step.ended:
            own, rows = step.ended - step.began, step.rows + step.nodes
            drafting = sum(member.took for member in step.asked)
            own += min(now - step.ended, _LONGEST_BETWEEN * own) - drafting
            self._target.observe(own, step.requests, rows, step.context)
            # By the tables: a slow moment is no loss.
            took = self._target.at(step.requests, rows, step.context)
            took += drafting / self._target.speed.value
            lost = took / (step.plain or took) - step.tokens / step.requests
            for member in [m for m in step.asked if m.has_engine] or step.asked:
                member.probe.drafted(lost)

    def _is_on(self, member: Member, step: Step) -> bool:
        """Whether a member pays, by what is known and assumed."""
        if member.has_engine:
            return member in self._chosen
        price = self.pace(step) * member.costs.at(step.requests, step.requests) / step.requests
        return member.probe.hope >= 0.5 or bool(member.worth.value > price)

    def _best(self, step: Step, chances: Floats, spent: float) -> tuple[int, float, float]:
        """The best number of nodes, given these ``chances``, with the tokens and seconds of such a
        step."""
        pace, ranks = self.pace(step), -np.sort(-chances[chances > 0])
        if len(step.costs) <= len(ranks):
            step.costs = self._target.run(step.requests, step.rows, len(ranks) + 1, step.context)
        costs = step.costs[: len(ranks) + 1]
        tokens = np.concatenate(([0.0], np.cumsum(ranks))) + step.requests
        nodes = int(np.argmax(tokens - pace * costs)) if pace else len(ranks)
        took = costs + spent
        if tokens[nodes] < pace * took[nodes]:  # out of reach
            nodes = int(np.argmax(tokens / took))
        return nodes, float(tokens[nodes]), float(took[nodes])


def _either(a: Floats, b: Floats) -> Floats:
    """Probabilities of two drafters' nodes together, as if the better of each rank counted."""
    longer, other = (a, b) if a.shape[1] > b.shape[1] else (b, a)
    both = longer.copy()
    np.maximum(longer[:, : other.shape[1]], other, out=both[:, : other.shape[1]])
    return both
