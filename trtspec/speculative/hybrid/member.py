"""Member: one drafter of a union, with what was learned about its drafts and their cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Set
from itertools import accumulate

from trtspec.executor.engines.counted_engine import CountedEngine
from trtspec.executor.schedule.resources import DraftCache
from trtspec.executor.step.drafter import Drafter
from trtspec.executor.step.request import Request
from trtspec.executor.step.step_plan import StepPlan
from trtspec.executor.step.step_result import StepResult
from trtspec.ops.draft_batch import DraftBatch
from trtspec.speculative.hybrid.acceptance import Acceptance
from trtspec.speculative.hybrid.costs import CostTable, Floats, Mean
from trtspec.speculative.hybrid.probe import Probe

_WORTH_HALF_LIFE = 6.0  # steps: fewer are noise, more draft on where a text no longer copies
_MOST_BEHIND = 128  # rows up to which drafting is timed: more take longer at the start
_CATCHES_UP_FOR = 32  # tokens at most that share a catch-up: more bet on texts that may end


class Member:
    """Asks a drafter for its trees, calibrates them (`Acceptance`), and knows their cost.

    idle: steps since it was last asked. probe: when it is tried again. worth: for a drafter without
    an engine, tokens per request that asking it adds. costs: of asking it, by the rows that are
    fed.
    """

    def __init__(
        self,
        drafter: Drafter,
        engine: CountedEngine | None = None,
        cache: DraftCache | None = None,
    ) -> None:
        """``engine``: the drafter's engine, if it has one, to be timed. ``cache``: the engine's K/V
        cache, if any."""
        self.drafter, self._engine, self._cache = drafter, engine, cache
        self.has_engine = drafter.needs.has_draft_engine
        # It makes up for steps that it was not told of, if it reads tokens alone, and its cache has
        # room for all rows that are due.
        self.can_be_left = not (drafter.needs.reads_hidden or bool(getattr(cache, "window", 0)))
        self.acceptance = Acceptance(drafter.needs.max_nodes, drafter.needs.max_depth)
        self.probe, self.worth = Probe(), Mean(_WORTH_HALF_LIFE)
        self.costs = CostTable()
        self.took = 0.0  # seconds of the last call
        self.idle = self._most_rows = 1 << 30
        self._drafts: DraftBatch | None = None  # of the step under way, of items with nodes

    def profile(self, max_requests: int, max_rows: int) -> None:
        """Time the drafter's engine, before there are requests."""
        engine, self._most_rows = self._engine, max_rows
        # After a step, two rows or so of each request are new to a cache.
        each, behind = (2, _MOST_BEHIND) if self._cache else (1, 0)
        if engine is not None:
            self.costs.profile(
                lambda rows: engine.time_call(min(max(rows // each, 1), max_requests), rows),
                max(each * max_requests, behind),
                engine,
            )

    def draft(self, plan: StepPlan, clock: Callable[[], float], pace: float = 0.0) -> DraftBatch:
        """Its calibrated drafts for these items of a step, which may have nodes. ``pace``: see
        `StepPlan`."""
        self.idle, requests = 0, [item.request for item in plan.items]
        ids = [request.id for request in requests]
        began, behind = clock(), [self._behind(request) for request in requests]
        # No call is to be larger than the target's.
        kept = [i for i, rows in enumerate(accumulate(behind)) if rows <= self._most_rows]
        self.probe.num_asked += 1
        gains = self.acceptance.gains(ids) if pace and self.has_engine else None
        drafts = self.drafter.prepare_draft_tokens(plan.pick(kept, pace, gains))
        self.took = clock() - began
        self.costs.observe(self.took, len(requests), sum(behind[i] for i in kept))
        self._drafts = drafts.spread(kept, len(requests))
        return self.acceptance.calibrate(ids, self._drafts, _depths(requests))

    def usual(self, requests: Sequence[Request]) -> Floats:
        """Probabilities ``[B, max_nodes]`` of what it would draft for these."""
        ids = [request.id for request in requests]
        return self.acceptance.usual(ids, self.probe.hope, _depths(requests))

    def seconds(self, requests: Sequence[Request], context: int = 0) -> float:
        """The expected time of drafting for these, including a share of catching up on their
        texts."""
        rows = 0.0
        for request in requests:
            behind, left = self._behind(request), max(request.remaining_tokens, 1)
            rows += min(behind, 2) + max(behind - 2, 0) / min(left, _CATCHES_UP_FOR)
        return self.costs.at(len(requests), math.ceil(rows), context)

    def on_accepted(
        self, batch: StepPlan, result: StepResult, adapts: bool, verified_only: bool
    ) -> Sequence[tuple[int, ...]]:
        """See `Drafter.on_accepted`; its drafts of the step are compared with what the target
        emitted. ``verified_only``: only those that were verified, if the acceptance rule is not the
        target's own. If it ``adapts``, a drafter that did not draft is only told what it cannot
        make up for, and is fed nothing."""
        drafts, self._drafts = self._drafts, None
        if drafts is not None:
            places = [i for i, item in enumerate(batch.items) if item.max_nodes > 0]
            verified = result.drafts.pick(places) if verified_only else None
            for at, i in enumerate(places):
                request_id, emitted = batch.items[i].request.id, result.emitted(i)
                self.acceptance.observe(request_id, drafts, at, emitted, verified)
        if not (adapts and self.idle):
            return self.drafter.on_accepted(batch, result)
        if not self.can_be_left:
            return self.drafter.on_accepted(batch.without_feeding(), result)
        cache = self._cache
        return [() if cache is None else (cache.committed(i.request),) for i in batch.items]

    def release(self, request_id: int) -> None:
        """Forget a request; unknown ids are ignored. If its step is under way, that step has
        failed, and the outcome of its drafts remains unknown."""
        self._drafts = None
        self.acceptance.drifts.pop(request_id, None)
        self.drafter.release(request_id)

    @property
    def live_requests(self) -> Set[int]:
        """See `Drafter.live_requests`: the drafter's, and those of which more is stored here."""
        return self.acceptance.drifts.keys() | self.drafter.live_requests

    def _behind(self, request: Request) -> int:
        """Tokens of the request that its cache lacks: the drafter feeds them before it drafts."""
        return len(request.tokens) - self._cache.committed(request) if self._cache else 1


def _depths(requests: Sequence[Request]) -> list[int]:
    return [request.max_draft_len for request in requests]
