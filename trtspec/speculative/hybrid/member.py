"""Member: one drafter of a union, with what has been learned of its drafts and their cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

from torch import Tensor

from trtspec.executor.counted_engine import CountedEngine
from trtspec.executor.drafter import Accepted, Drafter
from trtspec.executor.request import Request
from trtspec.executor.resources import DraftCache
from trtspec.executor.step_plan import ScheduledRequest, StepPlan
from trtspec.ops.tree import TokenTree
from trtspec.speculative.hybrid.draft_costs import DraftCosts
from trtspec.speculative.hybrid.learner import Learner, Outcome
from trtspec.speculative.hybrid.outlook import Outlook

_ALL_STEPS_AFTER = 32
"""Rollouts of one step, after which all are made: what is known of deeper nodes is to stay so."""


class Member:
    """Asks a drafter for its trees, says what chances their nodes have, and learns.

    name: in logs. costs: of its engine. A drafter's scores are calibrated by how its drafts have
    lately done (`Learner`).
    """

    def __init__(
        self,
        name: str,
        drafter: Drafter,
        engine: CountedEngine | None = None,
        cache: DraftCache | None = None,
    ) -> None:
        """``engine``: what the drafter drafts with, if it has one, to be timed. ``cache``: what
        the engine keeps its K/V in, if it does."""
        self.name = name
        self.drafter = drafter
        self.costs = DraftCosts()
        self._engine = engine
        self._cache = cache
        self._learner = Learner(drafter.needs.max_nodes)
        self._drafts: dict[int, TokenTree] = {}  # of the step under way, by request
        self._num_first_steps = 0  # since the last rollout of all steps
        self._is_trial = False

    @property
    def has_engine(self) -> bool:
        return self.drafter.needs.has_draft_engine

    @property
    def needs_all_steps(self) -> bool:
        """Whether its rollouts were left at their first step so often that one is to be whole."""
        return self._num_first_steps >= _ALL_STEPS_AFTER

    def profile(self, max_requests: int) -> None:
        """Time the drafter's engine, before there are requests."""
        if self._engine is not None:
            has_cache = self._cache is not None
            self.costs.profile(self.name, self._engine, has_cache, max_requests)

    def draft(
        self,
        items: Sequence[ScheduledRequest],
        clock: Callable[[], float],
        is_trial: bool = False,
        first_step_only: bool = False,
        blocks: Sequence[Tensor] = (),
    ) -> list[TokenTree]:
        """Its trees for these items of a step, which may have nodes, with its own scores.
        ``blocks``: see `StepPlan`.
        ``is_trial``: it drafts seldom, so as much is learned as can be. ``first_step_only``: nodes
        of depth 1 are enough."""
        self._is_trial = is_trial
        self._num_first_steps = self._num_first_steps + 1 if first_step_only else 0
        behind = self._num_behind(items)
        began = clock()
        plan = StepPlan(tuple(items), tuple(blocks), first_step_only=first_step_only)
        self.drafter.prepare_draft_tokens(plan)
        seconds = clock() - began
        if self.has_engine:
            self.costs.observe(len(items), behind, seconds, first_step_only)
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
        return self._learner.calibrate([item.request for item in items], trees)

    def num_behind(self, request: Request) -> int:
        """Tokens of the request that its cache lacks: the drafter feeds them before it drafts."""
        return len(request.tokens) - self._cache.committed(request) if self._cache else 0

    def outlook(self, items: Sequence[ScheduledRequest], prompt_rows: float = 0.0) -> Outlook:
        """What it would give these requests, before it is asked. ``prompt_rows``: of prompts, that
        come in a step of late."""
        costs = self.costs
        seconds, first_seconds = (costs.seconds(len(items), first) for first in (False, True))
        if not self._learner.knows_enough:
            first_step = Outlook(None, first_seconds) if costs.first_step.is_measured else None
            return Outlook(None, seconds, first_step=first_step)
        catching_up = costs.catching_up(len(items), self._num_behind(items))
        # A cache that can be fed at any time is not fed prompts while it is not in use.
        waits = any(cache.from_tokens for cache in self.drafter.needs.caches)
        upkeep = costs.catch_up * prompt_rows if waits else 0.0
        chances, first_chances = self._learner.chances([item.request for item in items])
        first_step = None
        if costs.first_step.is_measured:
            first_step = Outlook(first_chances, first_seconds + catching_up, upkeep)
        return Outlook(chances, seconds + catching_up, upkeep, first_step)

    def learn(self, batch: StepPlan, accepted: Sequence[Accepted], verified_only: bool) -> None:
        """Compare the step's drafts with what the target emitted. `verified_only`: judge only the
        nodes that were verified, where the rule of acceptance is another than the target's own."""
        if not self._drafts:
            return
        drafts, self._drafts = self._drafts, {}
        outcomes = [
            Outcome(
                item.request.id,
                draft,
                outcome.tokens,
                item.request.draft if verified_only else None,
            )
            for item, outcome in zip(batch.items, accepted, strict=True)
            if (draft := drafts.get(item.request.id)) is not None
        ]
        self._learner.add(
            outcomes,
            first_step_only=self._num_first_steps > 0,
            at_once=self._is_trial,
            profiles=self.has_engine,
        )

    def release(self, request_id: int) -> None:
        """Forget a request; unknown ids are ignored."""
        self._drafts.pop(request_id, None)
        self._learner.release(request_id)
        self.drafter.release(request_id)

    @property
    def live_requests(self) -> Set[int]:
        """See `Drafter.live_requests`: the drafter's, and those that more is known of here."""
        return self._learner.live_requests | self._drafts.keys() | self.drafter.live_requests

    def _num_behind(self, items: Sequence[ScheduledRequest]) -> int:
        return sum(self.num_behind(item.request) for item in items)
