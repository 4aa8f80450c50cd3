"""Alarms: a draft that is hardly accepted any more, or never was, or that costs too much."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from trtspec.executor.engines.counted_engine import CountedEngine
from trtspec.executor.step.drafter import Drafter
from trtspec.executor.step.forwarding_drafter import ForwardingDrafter
from trtspec.executor.step.step_plan import StepPlan
from trtspec.executor.step.step_result import StepResult
from trtspec.log import logger
from trtspec.ops.draft_batch import DraftBatch

LOW = 0.4
"""Least baseline acceptance rate of a first token. A higher value makes weak drafts raise an alarm
at once; a lower one delays the detection of wrong drafts."""
HEAVY = 0.25
"""Share of a target's step that a drafted token may take without a warning. A lower value blames
drafts that pay when half of them are accepted; a higher one spares drafts that never pay."""
LIGHTER = (
    "give the draft fewer bits (weight_dtype), cut its head (vocabulary), draft less, or take a "
    "smaller one"
)
_LEARNED = 512
"""Drafts from which the baseline is learned: fewer are noisy, more delay the alarm."""
_FEWEST = 64
"""Drafts that must have reached a position for it to be watched: with fewer, noise decides; with
more, deep positions are not watched."""
_AS_USUAL, _LOST = 1 / 2, 1 / 8
"""Shares of the baseline that the test tells apart: what hard texts may have, and what no text has.
Raising either causes false alarms on hard texts; lowering them delays true ones."""
_EVIDENCE = 14.0
"""Log likelihood ratio that changes the state. While half of the baseline is accepted, a false
alarm takes e^14 tokens or more; a higher value delays true alarms."""
_TIMED = 4
"""Calls of an engine, of which the fastest counts: fewer would time the first call's setup or other
load on the machine; more delay the start."""
_TOY = 1e-3
"""Seconds of a target's step below which no draft is called heavy, since the overhead of a call
dominates. A lower value blames toy models; a higher one spares small models on fast GPUs."""


class AcceptanceAlarm:
    """Detects when acceptance is lost, and when it has recovered: a sequential test (CUSUM, Page
    1954) between two shares of the baseline acceptance rates.

    The baseline is conditional, by position: of the first `_LEARNED` drafts without an alarm, the
    share that was right there given that the position before was right. For a first token it is at
    least `LOW`, also until it is learned.

    is_on: whether the alarm is raised. num_raised: how often it was.
    """

    def __init__(self) -> None:
        self.is_on, self.num_raised = False, 0
        self.usual: list[float] = [LOW]
        """Baseline rates of the watched positions."""
        self.compared = self.right = 0
        """Tokens compared since the evidence began."""
        self._evidence, self._learns = 0.0, True
        self._tries: list[int] = []
        self._hits: list[int] = []

    def observe(self, compared: int, right: int) -> bool:
        """Record a draft: ``compared`` of its positions were compared with the text, and the first
        ``right`` were right, which is all, or all but the last. Returns whether the alarm changed.
        """
        if self._learns and not self.is_on:
            self._learn(compared, right)
        if not self._evidence:
            self.compared = self.right = 0
        watched = min(compared, len(self.usual))
        hits = min(right, watched)
        change = hits * math.log(_LOST / _AS_USUAL)
        if hits < watched:
            usual = self.usual[hits]
            change += math.log((1 - _LOST * usual) / (1 - _AS_USUAL * usual))
        self._evidence = max(self._evidence + (-change if self.is_on else change), 0.0)
        self.compared, self.right = self.compared + watched, self.right + hits
        if self._evidence > _EVIDENCE:
            self.is_on = not self.is_on
            self.num_raised += self.is_on
            self._tries, self._hits, self._evidence = [], [], 0.0
            return True
        return False

    def _learn(self, compared: int, right: int) -> None:
        tries, hits = self._tries, self._hits
        tries += [0] * (compared - len(tries))
        hits += [0] * (compared - len(hits))
        for position in range(compared):
            tries[position] += 1
            hits[position] += position < right
        if tries and tries[0] == _LEARNED:
            self._learns = False
            self.usual = [max(hits[0] / tries[0], LOW)]
            for hit, tried in zip(hits[1:], tries[1:], strict=True):
                if tried < _FEWEST or hit < LOW * tried:  # too few to tell from chance
                    break
                self.usual.append(hit / tried)


class AlarmedDrafter(ForwardingDrafter):
    """Compares a drafter's own drafts, verified or not, with the text, for one request per step in
    turn: more would detect sooner, and cost the host a call each. Requests with processors of their
    own, such as a grammar, are left out: no draft was trained on what they emit. Findings are
    logged once.

    name: of the draft, in messages.
    """

    def __init__(self, drafter: Drafter, name: str, engine: CountedEngine) -> None:
        super().__init__(drafter)
        self.name = name
        self.alarm = AcceptanceAlarm()
        self.token_cost: float | None = None
        """Cost of a drafted token relative to a step of the target; None: not measured."""
        self._engine = engine
        self._asked: tuple[int, int, DraftBatch] | None = None  # a request, its place and drafts
        self._turn = 0

    @property
    def watched(self) -> Drafter:
        return self._drafter

    def reports(self) -> Sequence[Mapping[str, Any]]:
        alarm = self.alarm
        return [
            {
                "draft": self.name,
                "alarm": alarm.is_on,
                "num_alarms": alarm.num_raised,
                "usual_acceptance_per_pos": list(alarm.usual),
                "token_cost": self.token_cost,
            }
        ]

    def profile(self, target: CountedEngine, max_requests: int, max_rows: int) -> None:
        """In addition to what the drafter measures: the cost of a drafted token, for one
        request."""
        super().profile(target, max_requests, max_rows)
        draft, step = _fastest(self._engine, target)
        if not step or math.isinf(draft):
            return
        self.token_cost = draft / self.needs.max_depth / step
        if self.token_cost > HEAVY and step > _TOY:
            logger.warning(
                "a token of the draft %s takes %.0f%% of a step of the target (%d of them %.2f ms, "
                "a step %.2f ms): it pays only where most are accepted; %s",
                *(self.name, 100 * self.token_cost, self.needs.max_depth, 1e3 * draft, 1e3 * step),
                LIGHTER,
            )

    def prepare_draft_tokens(self, batch: StepPlan) -> DraftBatch:
        drafts = super().prepare_draft_tokens(batch)
        self._asked = self._ask(batch, drafts)
        return drafts

    def _ask(self, batch: StepPlan, drafts: DraftBatch) -> tuple[int, int, DraftBatch] | None:
        """The request whose turn it is, its place in the step, and the drafts."""
        drafted = [
            place
            for place, count in enumerate(drafts.counts)
            if count and not batch.items[place].request.processors
        ]
        if not drafted:
            return None
        self._turn += 1
        place = drafted[self._turn % len(drafted)]
        return batch.items[place].request.id, place, drafts

    def on_accepted(self, batch: StepPlan, result: StepResult) -> Sequence[tuple[int, ...]]:
        if result.drafted is not None:  # the device did
            self._asked = self._ask(batch, result.drafts)
        asked, self._asked = self._asked, None
        if asked is not None:
            id, place, drafts = asked
            for i, item in enumerate(batch.items):
                if item.request.id == id:
                    compared, right, _ = drafts.outcomes(place, result.emitted(i), None, (1, 1))
                    self._observe(compared, sum(right))
        return super().on_accepted(batch, result)

    def _observe(self, compared: int, right: int) -> None:
        if not self.alarm.observe(compared, right):
            return
        alarm = self.alarm
        found = f"of {alarm.compared} drafted tokens {alarm.right} were right"
        if not alarm.is_on:
            logger.warning("the draft %s is accepted again: %s", self.name, found)
            return
        logger.warning(
            "the draft %s is hardly accepted: %s, usual are %.0f%% of the first ones. Likely "
            "causes: it was made for another target, or version of it; the chat template is not "
            "that of its training; its vocabulary map means other tokens; the traffic has changed. "
            "trtspec-doctor compares the pair; texts stay right meanwhile, and come slower",
            *(self.name, found, 100 * alarm.usual[0]),
        )


def _fastest(draft: CountedEngine, target: CountedEngine) -> tuple[float, float]:
    """Seconds of a call of each engine for one request, interleaved; infinite if it cannot be
    timed."""
    least = [math.inf, math.inf]
    for _ in range(_TIMED):
        for i, engine in enumerate((draft, target)):
            seconds = engine.time_call(1, 1)
            least[i] = least[i] if seconds is None else min(least[i], seconds)
    return least[0], least[1]
