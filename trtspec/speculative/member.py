"""Member: one drafter of a union, with what has been learned of its drafts and their cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from trtspec.executor.batch import ScheduledBatch, ScheduledRequest
from trtspec.executor.counted_engine import CountedEngine
from trtspec.executor.drafter import Accepted, Drafter
from trtspec.executor.request import Request
from trtspec.executor.resources import DraftCache
from trtspec.ops.tree import TokenTree
from trtspec.speculative.controller import Outlook
from trtspec.speculative.costs import CostCurve
from trtspec.speculative.estimator import AcceptanceEstimator, Drift

Floats = npt.NDArray[np.float64]
_Outcome = tuple[int, TokenTree, Sequence[int], TokenTree | None]
"""A request, the tree that its drafter gave it, the tokens that the target emitted, and the only
nodes that count."""

_ALL_MEMORY, _ALL_TRUST = 64.0, 16.0  # rows
_REQUEST_MEMORY, _REQUEST_TRUST = 48.0, 12.0
_LEARNED = 64  # rows before an engine is judged
_FEW_BEHIND = 16  # rows of a request: more would blur the time of a draft
_CATCHES_UP_FOR = 16  # steps that what it catches up in one is an investment for
_CATCH_UP_WEIGHT = 0.3
_MANY_BEHIND = 128  # rows by whose time it is first judged
_PROFILE_WEIGHT = 0.1
_PROFILED = 2  # trees that the profile takes in at a time
_LEARNED_TOGETHER = 4
"""Steps that are learned from at once. What learns has left the caches when the target's call is
over, and takes ten times as long when it is first run again."""


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
        self.cost = CostCurve()
        self._catch_up = 0.0  # seconds for a row
        self._estimator = AcceptanceEstimator()
        self._drift = Drift(_ALL_MEMORY, _ALL_TRUST)
        self._drifts: dict[int, Drift] = {}
        self._drafts: dict[int, TokenTree] = {}  # of the step under way, by request
        self._requests: set[int] = set()  # that it drafted for
        self._profile: Floats | None = None  # mean chances of a request's nodes, the best first
        self._num_profiled = 0
        self._unlearned: list[list[_Outcome]] = []  # by step
        self._is_trial = False
        self._num_rows = 0

    @property
    def has_engine(self) -> bool:
        return self.drafter.needs.has_draft_engine

    def profile(self, max_requests: int) -> None:
        """Time the drafter's engine, before there are requests."""
        engine = self._engine
        if engine is None:
            return
        # After a step, two rows or so of each request are new to it.
        self.cost.profile(lambda requests: engine.time_call(requests, 2 * requests), max_requests)
        if self._cache is not None:
            seconds = min(engine.time_call(1, _MANY_BEHIND) or 0.0 for _ in range(2))
            self._catch_up = max(seconds - self.cost.at(1), 0.0) / _MANY_BEHIND

    def draft(
        self,
        items: Sequence[ScheduledRequest],
        clock: Callable[[], float],
        is_trial: bool = False,
    ) -> list[TokenTree]:
        """Its trees for these items of a step, which may have nodes, with its own scores.
        ``is_trial``: it drafts seldom, so as much is learned as can be."""
        self._is_trial = is_trial
        behind = sum(self.num_behind(item.request) for item in items)
        began = clock()
        self.drafter.prepare_draft_tokens(ScheduledBatch(tuple(items)))
        seconds = clock() - began
        if self.has_engine and behind <= _FEW_BEHIND * len(items):
            self.cost.observe(len(items), seconds)
        elif self.has_engine:
            more = max(seconds - self.cost.at(len(items)), 0.0) / behind
            self._catch_up += _CATCH_UP_WEIGHT * (more - self._catch_up)
        trees = []
        for item in items:
            request = item.request
            tree, request.draft = request.draft, TokenTree.empty()
            if len(tree):
                self._requests.add(request.id)
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

    def outlook(self, items: Sequence[ScheduledRequest]) -> Outlook:
        """What it would give these requests, before it is asked."""
        seconds = self.cost.at(len(items))
        if self._profile is None or self._num_rows < _LEARNED:
            return Outlook(None, seconds)
        behind = sum(self.num_behind(item.request) for item in items)
        if behind > _FEW_BEHIND * len(items):
            seconds += self._catch_up * behind / _CATCHES_UP_FOR
        drifts = [self._drifts.get(item.request.id, self._drift) for item in items]
        exponents = np.array([drift.exponent for drift in drifts])
        return Outlook(self._profile ** exponents[:, None], seconds)

    def learn(
        self,
        batch: ScheduledBatch,
        accepted: Sequence[Accepted],
        verified_only: bool,
    ) -> None:
        """Compare the step's drafts with what the target emitted. `verified_only`: judge only the
        nodes that were verified, where the rule of acceptance is another than the target's own."""
        if not self._drafts:
            return
        drafts, self._drafts = self._drafts, {}
        self._unlearned.append(
            [
                (
                    item.request.id,
                    draft,
                    outcome.tokens,
                    item.request.draft if verified_only else None,
                )
                for item, outcome in zip(batch.items, accepted, strict=True)
                if (draft := drafts.get(item.request.id)) is not None
            ]
        )
        is_due = self._is_trial or self._num_rows < _LEARNED
        if is_due or len(self._unlearned) >= _LEARNED_TOGETHER:
            self._learn()

    def _learn(self) -> None:
        """Take in the steps that wait for it."""
        steps, self._unlearned = self._unlearned, []
        for outcomes in steps:
            for request_id, draft, tokens, verified in outcomes:
                rows, hits, expected = self._estimator.observe(draft, tokens, verified)
                if not rows:
                    continue
                self._num_rows += rows
                self._drift.observe(rows, hits, expected)
                if request_id not in self._requests:  # released meanwhile
                    continue
                drift = self._drifts.get(request_id)
                if drift is None:
                    drift = Drift(_REQUEST_MEMORY, _REQUEST_TRUST, self._drift)
                    self._drifts[request_id] = drift
                drift.observe(rows, hits, expected)
        if self.has_engine:
            # By what is known now, so that a single try tells as much as it can.
            drafts = [draft for _, draft, _, _ in steps[-1][:_PROFILED]]
            for tree in self._estimator.calibrate(drafts, [1.0] * len(drafts)):
                self._update_profile(tree)

    def release(self, request_id: int) -> None:
        """Forget a request; unknown ids are ignored."""
        self._drifts.pop(request_id, None)
        self._drafts.pop(request_id, None)
        self._requests.discard(request_id)
        self.drafter.release(request_id)

    def _update_profile(self, tree: TokenTree) -> None:
        scores = tree.scores
        assert scores is not None, "a calibrated tree has scores"
        chances = np.zeros(self.drafter.needs.max_nodes)
        chances[: len(scores)] = np.exp(-np.sort(-scores))
        if self._profile is None:
            self._profile = np.zeros_like(chances)
        self._num_profiled += 1
        weight = max(_PROFILE_WEIGHT, 1 / self._num_profiled)
        self._profile += weight * (chances - self._profile)
