"""Member: one drafter of a union, with what has been learned of its drafts and their cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trtspec.executor.counted_engine import CountedEngine
from trtspec.executor.drafter import Accepted, Drafter
from trtspec.executor.request import Request
from trtspec.executor.resources import DraftCache
from trtspec.executor.step_plan import ScheduledRequest, StepPlan
from trtspec.log import logger
from trtspec.ops.tree import TokenTree
from trtspec.speculative.hybrid.controller import Outlook
from trtspec.speculative.hybrid.costs import CostCurve, Slowness
from trtspec.speculative.hybrid.estimator import AcceptanceEstimator, Drift

Floats = npt.NDArray[np.float64]
_ALL_MEMORY, _ALL_TRUST = 64.0, 16.0  # rows
_REQUEST_MEMORY, _REQUEST_TRUST = 48.0, 12.0
_LEARNED = 64  # rows before an engine is judged
_FEW_BEHIND = 16  # rows of a request: more would blur the time of a draft
_CATCHES_UP_FOR = 16  # steps that what it catches up in one is an investment for
_CATCH_UP_WEIGHT = 0.3
_MANY_BEHIND = 128  # rows by whose time it is first judged
_PROFILE_WEIGHT = 0.1
_PROFILED = 2  # trees that the profile takes in at a time
_ALL_STEPS_AFTER = 32
"""Rollouts of one step, after which all are made: what is known of deeper nodes is to stay so."""
_LEARNED_TOGETHER = 4
"""Steps that are learned from at once. What learns has left the caches when the target's call is
over, and takes ten times as long when it is first run again."""


@dataclass(slots=True)
class _Outcome:
    """What became of a draft. request_id: None once that was released. verified: the only nodes
    that count; None: all of them do."""

    request_id: int | None
    draft: TokenTree
    tokens: Sequence[int]  # that the target emitted
    verified: TokenTree | None


class Member:
    """Asks a drafter for its trees, says what chances their nodes have, and learns.

    Chances come from the drafter's calibrated scores, and beside them from how its drafts have
    lately done, in all and for each request: texts differ, and change.
    """

    def __init__(
        self,
        name: str,
        drafter: Drafter,
        engine: CountedEngine | None = None,
        cache: DraftCache | None = None,
    ) -> None:
        """``engine``: what the drafter drafts with, if it has one, to be timed. ``cache``: what
        that keeps its K/V in, if it does."""
        self.name = name
        self.drafter = drafter
        self._engine = engine
        self._cache = cache
        slowness = Slowness()
        self.cost = CostCurve(slowness)
        self._first_step_cost = CostCurve(slowness)
        self._num_first_steps = 0  # since the last rollout of all steps
        self._catch_up = 0.0  # seconds for a row
        self._estimator = AcceptanceEstimator()
        self._drift = Drift(_ALL_MEMORY, _ALL_TRUST)
        self._drifts: dict[int, Drift] = {}
        self._drafts: dict[int, TokenTree] = {}  # of the step under way, by request
        # Mean chances of a request's nodes, the best first: of all, and of those of depth 1.
        self._profile: Floats | None = None
        self._first_profile: Floats | None = None
        self._num_profiled = 0
        self._unlearned: list[tuple[bool, list[_Outcome]]] = []  # by step: the first alone?
        self._is_trial = self._is_first_step = False
        self._num_rows = 0

    @property
    def has_engine(self) -> bool:
        return self.drafter.needs.has_draft_engine

    @property
    def needs_all_steps(self) -> bool:
        """Whether its rollouts were left at their first step so often that one is to be whole."""
        return self._num_first_steps >= _ALL_STEPS_AFTER

    def profile(self, max_requests: int) -> None:
        """Time the drafter's engine, before there are requests."""
        engine = self._engine
        if engine is None:
            return
        # After a step, two rows or so of each request are new to it.
        self.cost.profile(lambda requests: engine.time_call(requests, 2 * requests), max_requests)
        logger.info("%s drafts in ms by requests: %s", self.name, self.cost.table())
        if engine.rolls_first_step:
            self._first_step_cost.profile(
                lambda requests: engine.time_call(requests, 2 * requests, first_step_only=True),
                max_requests,
            )
            first_step = self._first_step_cost.table()
            logger.info("one step of %s in ms by requests: %s", self.name, first_step)
        if self._cache is not None:
            seconds = min(engine.time_call(1, _MANY_BEHIND) or 0.0 for _ in range(2))
            self._catch_up = max(seconds - self.cost.at(1), 0.0) / _MANY_BEHIND

    def draft(
        self,
        items: Sequence[ScheduledRequest],
        clock: Callable[[], float],
        is_trial: bool = False,
        first_step_only: bool = False,
    ) -> list[TokenTree]:
        """Its trees for these items of a step, which may have nodes, with its own scores.
        ``is_trial``: it drafts seldom, so as much is learned as can be. ``first_step_only``: nodes
        of depth 1 are enough."""
        self._is_trial = is_trial
        self._num_first_steps = self._num_first_steps + 1 if first_step_only else 0
        self._is_first_step = first_step_only
        behind = sum(self.num_behind(item.request) for item in items)
        began = clock()
        batch = StepPlan(tuple(items), first_step_only=first_step_only)
        self.drafter.prepare_draft_tokens(batch)
        seconds = clock() - began
        cost = self._first_step_cost if first_step_only else self.cost
        if self.has_engine and behind <= _FEW_BEHIND * len(items):
            cost.observe(len(items), seconds)
        elif self.has_engine:
            more = max(seconds - cost.at(len(items)), 0.0) / behind
            self._catch_up += _CATCH_UP_WEIGHT * (more - self._catch_up)
        trees = []
        for item in items:
            request = item.request
            tree, request.draft = request.draft, TokenTree.empty()
            if len(tree):
                self._drafts[request.id] = tree
            trees.append(tree)
        return trees

    def calibrate(
        self, items: Sequence[ScheduledRequest], trees: Sequence[TokenTree]
    ) -> list[TokenTree]:
        """The trees that it drafted for these items, with the ln of the chances of their paths as
        their scores."""
        drifts = [self._drifts.get(item.request.id, self._drift) for item in items]
        return self._estimator.calibrate(trees, [drift.exponent for drift in drifts])

    def num_behind(self, request: Request) -> int:
        """Tokens of the request that its cache lacks: it feeds them before it drafts."""
        return len(request.tokens) - self._cache.committed(request) if self._cache else 0

    def seconds(self, requests: int, first_step_only: bool) -> float:
        """What drafting for so many should take."""
        return (self._first_step_cost if first_step_only else self.cost).at(requests)

    def outlook(self, items: Sequence[ScheduledRequest], prompt_rows: float = 0.0) -> Outlook:
        """What it would give these requests, before it is asked. ``prompt_rows``: of prompts, that
        come in a step of late."""
        seconds, first_seconds = (self.seconds(len(items), first) for first in (False, True))
        if self._profile is None or self._first_profile is None or self._num_rows < _LEARNED:
            return Outlook(None, seconds)
        behind = sum(self.num_behind(item.request) for item in items)
        if behind > _FEW_BEHIND * len(items):
            catching_up = self._catch_up * behind / _CATCHES_UP_FOR
            seconds, first_seconds = seconds + catching_up, first_seconds + catching_up
        # A cache that can be fed at any time is not fed prompts while it is not in use.
        waits = any(cache.from_tokens for cache in self.drafter.needs.caches)
        upkeep = self._catch_up * prompt_rows if waits else 0.0
        drifts = [self._drifts.get(item.request.id, self._drift) for item in items]
        exponents = np.array([drift.exponent for drift in drifts])[:, None]
        first_step = None
        if self._first_step_cost.is_measured:
            first_step = Outlook(self._first_profile**exponents, first_seconds, upkeep)
        return Outlook(self._profile**exponents, seconds, upkeep, first_step)

    def learn(
        self,
        batch: StepPlan,
        accepted: Sequence[Accepted],
        verified_only: bool,
    ) -> None:
        """Compare the step's drafts with what the target emitted. `verified_only`: judge only the
        nodes that were verified, where the rule of acceptance is another than the target's own."""
        if not self._drafts:
            return
        drafts, self._drafts = self._drafts, {}
        outcomes: list[_Outcome] = [
            _Outcome(
                item.request.id,
                draft,
                outcome.tokens,
                item.request.draft if verified_only else None,
            )
            for item, outcome in zip(batch.items, accepted, strict=True)
            if (draft := drafts.get(item.request.id)) is not None
        ]
        self._unlearned.append((self._is_first_step, outcomes))
        is_due = self._is_trial or self._num_rows < _LEARNED
        if is_due or len(self._unlearned) >= _LEARNED_TOGETHER:
            self._learn()

    def _learn(self) -> None:
        """Take in the steps that wait for it."""
        steps, self._unlearned = self._unlearned, []
        for _, outcomes in steps:
            for outcome in outcomes:
                rows, hits, expected = self._estimator.observe(
                    outcome.draft, outcome.tokens, outcome.verified
                )
                if not rows:
                    continue
                self._num_rows += rows
                self._drift.observe(rows, hits, expected)
                request_id = outcome.request_id
                if request_id is None:
                    continue
                drift = self._drifts.get(request_id)
                if drift is None:
                    drift = Drift(_REQUEST_MEMORY, _REQUEST_TRUST, self._drift)
                    self._drifts[request_id] = drift
                drift.observe(rows, hits, expected)
        if self.has_engine:
            # By what is known now, so that a single try tells as much as it can.
            whole = (step for step in reversed(steps) if not step[0])
            first_step_only, outcomes = next(whole, steps[-1])
            drafts = [outcome.draft for outcome in outcomes[:_PROFILED]]
            for tree in self._estimator.calibrate(drafts, [1.0] * len(drafts)):
                self._update_profile(tree, first_step_only)

    def release(self, request_id: int) -> None:
        """Forget a request; unknown ids are ignored."""
        self._drifts.pop(request_id, None)
        self._drafts.pop(request_id, None)
        for _, outcomes in self._unlearned:
            for outcome in outcomes:
                if outcome.request_id == request_id:
                    outcome.request_id = None
        self.drafter.release(request_id)

    @property
    def live_requests(self) -> Set[int]:
        """See `Drafter.live_requests`: the drafter's, and those that more is known of here."""
        waiting = {outcome.request_id for _, outcomes in self._unlearned for outcome in outcomes}
        known = {request_id for request_id in waiting if request_id is not None}
        return known.union(self._drifts, self._drafts, self.drafter.live_requests)

    def _update_profile(self, tree: TokenTree, first_step_only: bool) -> None:
        """By a calibrated tree."""
        scores, depths = tree.scores, tree.rows[2, 1:]
        assert scores is not None, "a calibrated tree has scores"
        first = self._falling(scores[depths == 1])
        if self._profile is None or self._first_profile is None:
            self._profile, self._first_profile = np.zeros_like(first), np.zeros_like(first)
        self._num_profiled += 1
        weight = max(_PROFILE_WEIGHT, 1 / self._num_profiled)
        before = float(self._first_profile[0])
        seen = first > 0  # a whole tree may have left out some of its first nodes
        self._first_profile[seen] += weight * (first - self._first_profile)[seen]
        if not first_step_only:
            self._profile += weight * (self._falling(scores) - self._profile)
        elif before > 0:  # deeper nodes are behind these
            scale = float(self._first_profile[0]) / before
            self._profile = np.minimum(self._profile * scale, 1.0)

    def _falling(self, scores: npt.NDArray[np.float32]) -> Floats:
        """The chances ``[max_nodes]`` of nodes, the best first, 0 behind them."""
        chances = np.zeros(self.drafter.needs.max_nodes)
        chances[: len(scores)] = np.exp(-np.sort(-scores))
        return chances
