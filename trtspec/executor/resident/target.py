"""ResidentTarget: a target, and the draft over its hidden states, that advance on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trtspec.backends.packing import RowGroup
from trtspec.backends.staging import HostRead
from trtspec.executor.engines.buckets import Bucket
from trtspec.executor.engines.model_engine import ModelEngine
from trtspec.executor.resident.arena import NUM_ENDS, Arena
from trtspec.executor.resident.engine import Patch
from trtspec.executor.resident.halves import StepHalves, Verified
from trtspec.executor.step.device_rollout import DeviceRollout
from trtspec.executor.step.drafter import DrafterNeeds
from trtspec.executor.step.request import Request
from trtspec.executor.step.step_plan import ScheduledRequest, StepPlan
from trtspec.executor.step.step_result import REASONS, StepResult
from trtspec.ops.draft_batch import DraftBatch
from trtspec.ops.tree import TokenTree


@dataclass(frozen=True)
class _Launched:
    """A step under way: of each item its numbers (`Advanced.result`), on their way to the host."""

    plan: StepPlan
    result: HostRead


class ResidentTarget:
    """A `ResidentEngine` over a target's engine, and over that of a draft, if there is one.

    A launch is two calls (`StepHalves`), without waiting. Between prompts' rows and the host there
    is nothing to wait for either: which ones are fed is known when they are launched.
    """

    def __init__(
        self,
        target: ModelEngine,
        places: int,
        needs: DrafterNeeds,
        rollout: DeviceRollout | None = None,
    ) -> None:
        """``places``: most requests that run at once. ``needs``: of the drafter whose drafts
        ``rollout`` makes; None: there are none."""
        self._target = target
        self._rollout = rollout
        self._arena = Arena(places, target, rollout)
        self._halves = StepHalves(target, self._arena, 1 + needs.max_nodes, rollout)

    def warm_up(self) -> None:
        """See `StepHalves`."""
        self._halves.warm_up()

    def holds(self, request: Request) -> bool:
        """See `ResidentEngine`."""
        return len(request.end_tokens) <= NUM_ENDS

    def launch(self, patch: Patch) -> _Launched:
        """See `ResidentEngine`."""
        plan = patch.plan
        self._arena.apply(patch)
        items, prompts = self._given(plan)
        drafts = self._rollout is not None and any(item.max_nodes for item in plan.items)
        cached_tokens = sum(item.start + item.num_rows for item in plan.items)
        step = self._halves.run(items, prompts, self._bucket(plan), drafts, cached_tokens)
        if self._rollout is not None and prompts is not None:
            self._feed_prompts(plan, self._rollout, step)
        return _Launched(plan, HostRead([step.result]))

    def collect(self, handle: _Launched) -> StepResult:
        """See `ResidentEngine`."""
        (columns,) = handle.result.wait()
        result, trees = StepResult.of([]), list[TokenTree | None]()
        lengths: list[tuple[int, ...]] = []
        values = columns[: len(handle.plan.items)].tolist()
        for count, reason, drafted, nodes, *rest in values:
            width = len(rest) // 4
            tokens, rows, of_nodes, parents = (rest[i * width : (i + 1) * width] for i in range(4))
            result.tokens += tokens[:count]
            result.rows += rows[:count]
            result.start.append(len(result.tokens))
            result.ends.append(REASONS[reason])
            lengths.append(() if self._rollout is None else (drafted,))
            trees.append(TokenTree(of_nodes[:nodes], parents[:nodes]) if nodes else None)
        result.drafted, result.drafts = lengths, DraftBatch.of(trees)
        return result

    def leave(self, request: Request, committed: int) -> None:
        """See `ResidentEngine`."""
        rollout, arena = self._rollout, self._arena
        if rollout is None or rollout.pending is None or not request.may_draft:
            return
        first = rollout.cache.committed(request) - rollout.behind
        hidden = None
        if committed - first <= arena.ring:
            hidden = arena.states(request, first, committed)
        rollout.pending.give_back(request, hidden)

    def _bucket(self, plan: StepPlan) -> Bucket:
        """What the target's call is padded to."""
        rows = sum(item.num_rows + item.max_nodes for item in plan.items)
        logits = sum(1 + item.max_nodes for item in plan.items if item.samples)
        # A compiled engine wants at least one logits row.
        return self._target.step_bucket(len(plan.items), rows, max(logits, 1))

    def _given(self, plan: StepPlan) -> tuple[list[list[int]], list[int] | None]:
        """The ``items`` and ``chunk`` of `trtspec.ops.resident_step`; None: no prompt is fed."""
        items, chunk = [], list[int]()
        for item in plan.items:
            numbers = item.start, item.num_rows, item.is_generation, item.max_nodes, item.samples
            items.append([self._arena.place(item.request), *map(int, numbers), len(chunk)])
            if not item.is_generation:
                end = item.start + item.num_rows
                chunk += item.request.tokens[item.start : end if item.samples else end + 1]
        return items, None if plan.only_generates else chunk

    def _feed_prompts(self, plan: StepPlan, rollout: DeviceRollout, step: Verified) -> None:
        """Feed the draft all pairs of prompts' rows except the newest of each request, and keep the
        states of those."""
        groups, states = [], []
        hidden = None if rollout.pending is None else step.hidden
        for i, item in enumerate(plan.items):
            drafted = self._arena.fed.get(item.request.id)
            if drafted is None or item.is_generation:
                continue
            group, waiting, count = self._prompt_rows(item, rollout, drafted)
            if group is not None:
                groups.append(group)
            if group is not None and hidden is not None:
                skipped = item.num_rows - 1 - count
                own = skipped + torch.arange(count, device=hidden.device)
                states += [waiting, hidden[step.query_start[i] + own]]
        if groups:
            rollout.engine.feed(groups, torch.cat(states) if states else None)
        if hidden is not None:
            self._arena.keep_hidden(hidden, step.kept_rows, step.ring_rows)

    def _prompt_rows(
        self, item: ScheduledRequest, rollout: DeviceRollout, drafted: int
    ) -> tuple[RowGroup | None, Tensor, int]:
        """The rows to feed of a prompt, states of the pairs that wait among them, and how many are
        new."""
        arena, request = self._arena, item.request
        newest, first = item.start + item.num_rows - 1, drafted - rollout.behind
        arena.fed[request.id] = max(drafted, newest + rollout.behind - rollout.not_final)
        if item.samples:
            del arena.fed[request.id]
        if first >= newest:
            return None, arena.hidden[:0], 0
        group = rollout.cache.rows(request, drafted, request.tokens[first + 1 : newest + 1])
        waiting = arena.states(request, first, min(item.start, newest))
        return group, waiting, newest - first - len(waiting)
