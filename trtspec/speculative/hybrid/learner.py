"""Learner: what chances a drafter's nodes have, by what became of earlier ones."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trtspec.executor.request import Request
from trtspec.ops.tree import TokenTree
from trtspec.speculative.hybrid.draft_profile import DraftProfile
from trtspec.speculative.hybrid.estimator import AcceptanceEstimator, Drift

Floats = npt.NDArray[np.float64]
_ALL_MEMORY, _ALL_TRUST = 64.0, 16.0  # rows
_REQUEST_MEMORY, _REQUEST_TRUST = 48.0, 12.0
_LEARNED = 64  # rows before an engine is judged
_PROFILED = 2  # trees that the profile takes in at a time
_LEARNED_TOGETHER = 4
"""Steps that are learned from at once. What learns has left the caches when the target's call is
over, and takes ten times as long when it is first run again."""


@dataclass(slots=True)
class Outcome:
    """What became of a draft. request_id: None once that was released. verified: the only nodes
    that count; None: all of them do."""

    request_id: int | None
    draft: TokenTree
    tokens: Sequence[int]  # that the target emitted
    verified: TokenTree | None


class Learner:
    """Calibrates a drafter's scores, in all and for each request: texts differ, and change."""

    def __init__(self, max_nodes: int) -> None:
        self.profile = DraftProfile(max_nodes)
        self._estimator = AcceptanceEstimator()
        self._drift = Drift(_ALL_MEMORY, _ALL_TRUST)
        self._drifts: dict[int, Drift] = {}
        self._waiting: list[tuple[bool, list[Outcome]]] = []  # by step: its first step alone?
        self._num_rows = 0

    @property
    def knows_enough(self) -> bool:
        """Whether a drafter can be judged by what was learned."""
        return self.profile.whole is not None and self._num_rows >= _LEARNED

    def calibrate(self, requests: Sequence[Request], trees: Sequence[TokenTree]) -> list[TokenTree]:
        """The trees drafted for these requests, with the ln of the chances of their paths as their
        scores."""
        if not any(map(len, trees)):
            return list(trees)
        return self._estimator.calibrate(trees, self._exponents(requests))

    def chances(self, requests: Sequence[Request]) -> tuple[Floats, Floats]:
        """What is expected for each request ``[B, max_nodes]``: of all nodes, the best first, and
        of those of depth 1."""
        whole, first_step = self.profile.whole, self.profile.first_step
        assert whole is not None and first_step is not None, "asked before it knows enough"
        exponents = np.array(self._exponents(requests))[:, None]
        return whole**exponents, first_step**exponents

    def add(
        self, outcomes: list[Outcome], first_step_only: bool, *, at_once: bool, profiles: bool
    ) -> None:
        """Take in what became of a step's drafts, a few steps together unless ``at_once``.
        ``profiles``: the profile is wanted too."""
        self._waiting.append((first_step_only, outcomes))
        is_due = at_once or self._num_rows < _LEARNED
        if is_due or len(self._waiting) >= _LEARNED_TOGETHER:
            steps, self._waiting = self._waiting, []
            for _, waiting in steps:
                for outcome in waiting:
                    self._observe(outcome)
            if profiles:
                self._update_profile(steps)

    def release(self, request_id: int) -> None:
        """Forget a request; unknown ids are ignored."""
        self._drifts.pop(request_id, None)
        for _, outcomes in self._waiting:
            for outcome in outcomes:
                if outcome.request_id == request_id:
                    outcome.request_id = None

    @property
    def live_requests(self) -> Set[int]:
        """The ids of requests that something is known of."""
        waiting = {outcome.request_id for _, outcomes in self._waiting for outcome in outcomes}
        return {request_id for request_id in waiting if request_id is not None}.union(self._drifts)

    def _exponents(self, requests: Sequence[Request]) -> list[float]:
        return [self._drifts.get(request.id, self._drift).exponent for request in requests]

    def _observe(self, outcome: Outcome) -> None:
        rows, hits, expected = self._estimator.observe(
            outcome.draft, outcome.tokens, outcome.verified
        )
        if not rows:
            return
        self._num_rows += rows
        self._drift.observe(rows, hits, expected)
        if outcome.request_id is None:
            return
        drift = self._drifts.get(outcome.request_id)
        if drift is None:
            drift = Drift(_REQUEST_MEMORY, _REQUEST_TRUST, self._drift)
            self._drifts[outcome.request_id] = drift
        drift.observe(rows, hits, expected)

    def _update_profile(self, steps: Sequence[tuple[bool, list[Outcome]]]) -> None:
        """By what is known now, so that a single try tells as much as it can."""
        whole = (step for step in reversed(steps) if not step[0])
        first_step_only, outcomes = next(whole, steps[-1])
        drafts = [outcome.draft for outcome in outcomes[:_PROFILED]]
        for tree in self._estimator.calibrate(drafts, [1.0] * len(drafts)):
            self.profile.observe(tree, first_step_only)
