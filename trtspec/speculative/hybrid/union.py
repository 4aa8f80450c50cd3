"""UnionDrafter: several drafters propose, and the best nodes of all are verified once."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from trtspec.executor.engines.counted_engine import CountedEngine
from trtspec.executor.step.drafter import Drafter, DrafterNeeds
from trtspec.executor.step.step_plan import StepPlan
from trtspec.executor.step.step_result import StepResult
from trtspec.ops.draft_batch import DraftBatch
from trtspec.speculative.hybrid.costs import CostTable
from trtspec.speculative.hybrid.member import Member
from trtspec.speculative.hybrid.policy import Policy, Step


class UnionDrafter(Drafter):
    """Merges the trees of its members by token path and gives the rows of a step to the nodes most
    likely to be accepted in the whole batch. A node's probability is the highest that a member
    gives its path. The `Policy` decides whom to ask, and how many nodes are verified."""

    def __init__(
        self,
        members: Sequence[Member],
        needs: DrafterNeeds,
        *,
        adapts: bool,
        has_own_rule: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``adapts``: draft and verify what pays; False: as much as possible. ``has_own_rule``: an
        `AcceptanceRule` accepts drafts, not the target's own choice."""
        self.needs, self.target_cost = needs, CostTable()
        self._sources = {member: source for source, member in enumerate(members)}
        self._members = sorted(members, key=lambda member: member.has_engine)
        for member in members:
            member.costs.speed = self.target_cost.speed
        self._adapts, self._has_own_rule, self._clock = adapts, has_own_rule, clock
        self._policy = Policy(self.target_cost, self._members)
        self._step: Step | None = None

    def skips_drafts(self, num_requests: int) -> bool:
        nothing_pays = self._adapts and num_requests > 0 and self._policy.skips(num_requests)
        return nothing_pays and not self.needs.reads_every_row

    def prepare_draft_tokens(self, batch: StepPlan) -> DraftBatch:
        began = self._clock()
        if self._step is not None:
            self._policy.close(self._step, began)
        items = [item for item in batch.items if item.is_generation]
        rows = sum(item.num_rows for item in batch.items)
        context = sum(item.start for item in items)
        self._step = step = self._policy.step(len(items), rows, context, began)
        places = [i for i, item in enumerate(batch.items) if item.max_nodes > 0]
        if not places:
            return DraftBatch.none(len(batch.items))
        return self._draft(step, batch.pick(places)).spread(places, len(batch.items))

    def on_accepted(self, batch: StepPlan, result: StepResult) -> list[tuple[int, ...]]:
        step = self._step
        assert step is not None, "drafts are prepared before they are verified"
        step.tokens = len(result.tokens)
        own = self._adapts, self._has_own_rule
        told = [member.on_accepted(batch, result, *own) for member in self._members]
        step.ended = self._clock()
        return [sum(lengths, ()) for lengths in zip(*told, strict=True)]

    def release(self, request_id: int) -> None:
        for member in self._members:
            member.release(request_id)

    @property
    def live_requests(self) -> Set[int]:
        return {i for member in self._members for i in member.live_requests}

    def reports(self) -> Sequence[Mapping[str, Any]]:
        return [found for member in self._members for found in member.drafter.reports()]

    def profile(self, target: CountedEngine, max_requests: int, max_rows: int) -> None:
        """See `Drafter.profile`: times the target, then the engine of each member."""
        most = min(max_rows, max_requests * (1 + self.needs.max_nodes))
        self.target_cost.profile(
            lambda rows: target.time_call(min(rows, max_requests), rows), most, target
        )
        for member in self._members:
            member.profile(max_requests, max_rows)
            member.drafter.profile(target, max_requests, max_rows)

    def _draft(self, step: Step, plan: StepPlan) -> DraftBatch:
        """Let members draft, and give each item the nodes that are worth a row."""
        policy, clock, pace = self._policy, self._clock, 0.0
        requests = [item.request for item in plan.items]
        drafts: dict[Member, DraftBatch] = {}
        engines: Sequence[Member] = self._members
        if self._adapts:
            drafts = {member: member.draft(plan, clock) for member in policy.asks(step)}
            engines, pace = policy.choose(step, requests, drafts), policy.pace(step)
        for member in engines:
            drafts[member] = member.draft(plan, clock, pace)
        if not drafts:
            return DraftBatch.none(len(requests))
        step.asked = list(drafts)
        sources = [self._sources[member] for member in drafts]
        union = DraftBatch.merge([*drafts.values()], sources)
        union = union.best([item.max_nodes for item in plan.items])
        if self._adapts:
            union = union.likeliest(policy.count(step, union.chances))
        step.nodes = sum(union.counts)
        return union
