"""Member: one drafter of a union, with what has been learned of its drafts and their cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from itertools import accumulate

from torch import Tensor

from trtspec.executor.counted_engine import CountedEngine
from trtspec.executor.drafter import Drafter
from trtspec.executor.request import Request
from trtspec.executor.resources import DraftCache
from trtspec.executor.step_plan import ScheduledRequest, StepPlan
from trtspec.executor.step_result import StepResult
from trtspec.ops.tree import TokenTree
from trtspec.speculative.hybrid.acceptance import Acceptance
from trtspec.speculative.hybrid.costs import CostTable, Mean
from trtspec.speculative.hybrid.probe import Probe

_WORTH_HALF_LIFE = 6.0  # steps: fewer are noise, more draft on where a text no longer copies
_MOST_BEHIND = 128  # rows up to which drafting is timed: more take longer at the start
_CATCHES_UP_FOR = 128  # tokens at most that share a catch-up: more bet on texts that may end


class Member:
    """Asks a drafter for its trees, calibrates them (`Acceptance`), and knows what that takes.

    idle: steps since it was last asked. probe: when it is hoped again. worth: of one without an
    engine, tokens a request that asking it adds. costs: of asking it, by the rows that are fed.
    """

    def __init__(
        self,
        drafter: Drafter,
        engine: CountedEngine | None = None,
        cache: DraftCache | None = None,
    ) -> None:
        """``engine``: what the drafter drafts with, if it has one, to be timed. ``cache``: what
        the engine keeps its K/V in, if it does."""
        self.drafter, self._engine, self._cache = drafter, engine, cache
        self.has_engine = drafter.needs.has_draft_engine
        # It makes up for steps that it was not told of: it reads tokens alone, and its cache has
        # room for all rows that are due.
        reads_tokens = not drafter.needs.reads_hidden
        self.can_be_left = reads_tokens and (cache is None or not getattr(cache, "window", 0))
        self.acceptance = Acceptance(drafter.needs.max_nodes, drafter.needs.max_depth)
        self.probe, self.worth = Probe(), Mean(_WORTH_HALF_LIFE)
        self.costs = CostTable(self.has_engine)
        self.took = 0.0  # seconds of the last call
        self.idle = self._most_rows = 1 << 30
        self._drafts: dict[int, TokenTree] = {}  # of the step under way, by request

    def is_worth(self, tokens: float) -> bool:
        """Whether to ask one without an engine, at the price of so many tokens a request."""
        return self.acceptance.is_tried or bool(self.worth.value > tokens)

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

    def draft(
        self,
        items: Sequence[ScheduledRequest],
        clock: Callable[[], float],
        blocks: Sequence[Tensor] = (),
        pace: float = 0.0,
    ) -> list[TokenTree]:
        """Its trees for these items of a step, which may have nodes, calibrated. ``blocks`` and
        ``pace``: see `StepPlan`."""
        self.idle = 0
        ids = [item.request.id for item in items]
        began, behind = clock(), [self._behind(item.request) for item in items]
        # No call is to be larger than the target's: those with the fewest rows come first.
        order = sorted(range(len(items)), key=behind.__getitem__)
        totals = accumulate(behind[i] for i in order)
        kept = sorted(i for i, rows in zip(order, totals, strict=True) if rows <= self._most_rows)
        plan = tuple(items[i] for i in kept), tuple(blocks[i] for i in kept if blocks)
        gains = self.acceptance.gains(ids) if pace and self.has_engine else None
        drafts = self.drafter.prepare_draft_tokens(StepPlan(*plan, pace=pace, gains=gains))
        self.took = clock() - began
        self.costs.observe(self.took, len(items), sum(behind[i] for i in kept))
        asked = dict(zip(kept, drafts, strict=True))
        trees = [asked.get(i, TokenTree.empty()) for i in range(len(items))]
        self._drafts = {i: tree for i, tree in zip(ids, trees, strict=True) if len(tree)}
        return self.acceptance.calibrate(ids, trees)

    def seconds(self, requests: Sequence[Request], context: int = 0) -> float:
        """What drafting for these should take, with a share of catching up: tokens that a step is
        hoped to bring, of those that the texts may still have."""
        count = len(requests)
        ids, behind = [r.id for r in requests], [self._behind(request) for request in requests]
        usual = sum(min(rows, 2) for rows in behind)
        left = sum(min(request.remaining_tokens, _CATCHES_UP_FOR) for request in requests)
        per_step = count + float(self.acceptance.usual(ids).sum())
        due = (sum(behind) - usual) * per_step / max(left, 1)
        seconds, more = (self.costs.at(count, usual + rows, context) for rows in (0, _MOST_BEHIND))
        return seconds + due * (more - seconds) / _MOST_BEHIND

    def on_accepted(
        self, batch: StepPlan, result: StepResult, adapts: bool, verified_only: bool
    ) -> Sequence[tuple[int, ...]]:
        """See `Drafter.on_accepted`; its drafts of the step are compared with what the target
        emitted. ``verified_only``: those that were verified, where the rule of acceptance is not
        the target's own. Where it ``adapts``, one that did not draft is not told if it can be left;
        else it hears of what it cannot make up for. It is fed nothing: that is weighed once it is
        to draft."""
        drafts, self._drafts = self._drafts, {}
        for i, item in enumerate(batch.items) if drafts else ():
            request = item.request
            if request.id in drafts:
                verified, emitted = result.drafts[i] if verified_only else None, result.emitted(i)
                self.acceptance.observe(request.id, drafts[request.id], emitted, verified)
        if not (adapts and self.idle):
            return self.drafter.on_accepted(batch, result)
        if not self.can_be_left:
            return self.drafter.on_accepted(batch.without_feeding(), result)
        cache = self._cache
        return [() if cache is None else (cache.committed(i.request),) for i in batch.items]

    def release(self, request_id: int) -> None:
        """Forget a request; unknown ids are ignored."""
        self._drafts.pop(request_id, None)
        self.acceptance.drifts.pop(request_id, None)
        self.drafter.release(request_id)

    @property
    def live_requests(self) -> Set[int]:
        """See `Drafter.live_requests`: the drafter's, and those that more is known of here."""
        return self.acceptance.drifts.keys() | self._drafts.keys() | self.drafter.live_requests

    def _behind(self, request: Request) -> int:
        """Tokens of the request that its cache lacks: the drafter feeds them before it drafts."""
        return len(request.tokens) - self._cache.committed(request) if self._cache else 1
