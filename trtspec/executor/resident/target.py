"""ResidentTarget: a target, and the draft over its hidden states, that advance on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trtspec.backends.inputs import EngineInputs, RowInputs
from trtspec.backends.packing import RowGroup
from trtspec.backends.staging import Staging
from trtspec.executor.engines.buckets import Bucket
from trtspec.executor.engines.model_engine import ModelEngine
from trtspec.executor.resident.arena import NUM_ENDS, Arena
from trtspec.executor.resident.engine import Patch
from trtspec.executor.step.device_rollout import DeviceRollout
from trtspec.executor.step.drafter import DrafterNeeds
from trtspec.executor.step.request import Request
from trtspec.executor.step.step_plan import ScheduledRequest, StepPlan
from trtspec.executor.step.step_result import REASONS, StepResult
from trtspec.ops.acceptance import accept_trees
from trtspec.ops.draft_batch import DraftBatch
from trtspec.ops.resident_step import (
    Advanced,
    Draft,
    VerifyCall,
    advance,
    pack_rollout,
    pack_verify,
)
from trtspec.ops.sampling import sample
from trtspec.ops.tree import TokenTree


@dataclass(frozen=True)
class _Launched:
    """A step under way: of each item its numbers (`Advanced.result`), which are on the host once
    ``copied``, if that is an event, has happened."""

    plan: StepPlan
    result: Tensor
    copied: torch.cuda.Event | None


class ResidentTarget:
    """A `ResidentEngine` over a target's engine, and over that of a draft, if there is one.

    A launch is two halves, each of shapes that follow from the sizes of its `Bucket` alone, without
    waiting: a rollout over the rows that earlier steps accepted, and the target's call over its
    trees, with sampling, acceptance and what follows from these. Between prompts' rows and the host
    there is nothing to wait for either: which ones are fed is known when they are launched.
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
        self._width = 1 + needs.max_nodes
        self._arena = Arena(places, target, rollout)
        self._staging = Staging(target.caches.device)
        self._behind = self._not_final = 0
        if rollout is not None:
            self._behind, self._not_final = rollout.behind, rollout.not_final

    def holds(self, request: Request) -> bool:
        """See `ResidentEngine`."""
        return len(request.end_tokens) <= NUM_ENDS

    def launch(self, patch: Patch) -> _Launched:
        """See `ResidentEngine`."""
        plan = patch.plan
        self._arena.apply(patch)
        bucket = self._bucket(plan)
        items, chunk = self._staging.to_device(self._given(plan, bucket))
        draft = self._draft(plan, items)
        call, hidden, advanced = self._verify(plan, items, chunk, draft, bucket)
        if self._rollout is not None:
            self._feed_prompts(plan, self._rollout, call.rows[4], hidden)
            if hidden is not None:
                self._arena.keep_hidden(hidden, advanced.kept_rows, advanced.ring_rows)
        return _copied(plan, advanced.result)

    def collect(self, handle: _Launched) -> StepResult:
        """See `ResidentEngine`."""
        if handle.copied is not None:
            handle.copied.synchronize()
        result, trees = StepResult.of([]), list[TokenTree | None]()
        lengths: list[tuple[int, ...]] = []
        values = handle.result[: len(handle.plan.items)].tolist()
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
            hidden = arena.hidden[arena.rows_of(request, first, committed)]
        rollout.pending.give_back(request, hidden)

    def _bucket(self, plan: StepPlan) -> Bucket:
        """What the target's call is padded to."""
        rows = sum(item.num_rows + item.max_nodes for item in plan.items)
        logits = sum(1 + item.max_nodes for item in plan.items if item.samples)
        # A compiled engine wants at least one logits row.
        return self._target.step_bucket(len(plan.items), rows, max(logits, 1))

    def _given(self, plan: StepPlan, bucket: Bucket) -> list[Tensor]:
        """The ``items`` and the ``chunk`` of `trtspec.ops.resident_step`."""
        items, chunk = [], list[int]()
        for item in plan.items:
            numbers = item.start, item.num_rows, item.is_generation, item.max_nodes, item.samples
            items.append([self._arena.place(item.request), *map(int, numbers), len(chunk)])
            if not item.is_generation:
                end = item.start + item.num_rows
                chunk += item.request.tokens[item.start : end if item.samples else end + 1]
        padding = [-1, *[0] * (len(items[0]) - 1)]
        items += [padding] * (bucket.requests - len(items))
        chunk += [0] * (bucket.rows + bucket.requests - len(chunk))
        return [torch.tensor(items), torch.tensor(chunk, dtype=torch.int64)]

    def _draft(self, plan: StepPlan, items: Tensor) -> Draft:
        """The first half: trees of the items that may have nodes."""
        rollout, arena, count = self._rollout, self._arena, len(items)
        if rollout is None or not any(item.max_nodes for item in plan.items):
            none = items.new_zeros(count, 0)
            return Draft(none, none.to(torch.int32), none.to(torch.float32))
        layout = rollout.engine.layout
        call = pack_rollout(
            *(arena.kept, arena.tables[1], items),
            behind=self._behind,
            num_rows=count * arena.ring,
            tokens_per_block=layout.tokens_per_block,
            mask_words=layout.mask_words,
        )
        inputs = EngineInputs(
            RowInputs._make(call.rows),
            last_rows=call.last_rows,
            columns=call.columns,
            hidden_in=None if rollout.pending is None else arena.hidden[call.ring_rows],
        )
        tokens, parents, scores = rollout.engine.call_placed(inputs, _cached_tokens(plan))
        return Draft(tokens.contiguous(), parents.contiguous(), scores.contiguous())

    def _verify(
        self, plan: StepPlan, items: Tensor, chunk: Tensor, draft: Draft, bucket: Bucket
    ) -> tuple[VerifyCall, Tensor | None, Advanced]:
        """The second half: the target's call, its hidden states, and what became of the step."""
        target, arena, layout = self._target, self._arena, self._target.layout
        call = pack_verify(
            *(arena.kept, arena.tables[0], items, chunk, draft),
            behind=self._behind,
            num_rows=bucket.rows,
            num_logits=bucket.logits,
            tokens_per_block=layout.tokens_per_block,
            mask_words=layout.mask_words,
        )
        inputs = EngineInputs(RowInputs._make(call.rows), logits_rows=call.logits_rows)
        if target.has_adapters:
            inputs = inputs._replace(adapters=call.adapters)
        if target.verifies:
            inputs = inputs._replace(
                columns=call.columns, parents=call.parents, row_start=call.row_start
            )
        outputs = target.call_placed(inputs, _cached_tokens(plan))
        if target.verifies:
            *outputs, sampled, accepted, emitted = outputs
        else:
            sampled = sample(outputs[0], *call.columns)
            walked = sampled, call.tokens, call.parents, call.row_start
            accepted, emitted = accept_trees(*walked, self._width)
        advanced = advance(
            *(arena.kept, arena.tables[0], items, chunk, call, sampled, accepted, emitted),
            tokens_per_block=layout.tokens_per_block,
            behind=self._behind,
            not_final=self._not_final,
        )
        target.caches.compact(advanced.src_slots.flatten(), advanced.dst_slots.flatten())
        return call, outputs[1] if len(outputs) > 1 else None, advanced

    def _feed_prompts(
        self, plan: StepPlan, rollout: DeviceRollout, query_start: Tensor, hidden: Tensor | None
    ) -> None:
        """Feed the draft all pairs of prompts' rows except the newest of each request."""
        groups, states = [], []
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
                states += [self._arena.hidden[waiting], hidden[query_start[i] + own]]
        if groups:
            rollout.engine.feed(groups, torch.cat(states) if states else None)

    def _prompt_rows(
        self, item: ScheduledRequest, rollout: DeviceRollout, drafted: int
    ) -> tuple[RowGroup | None, list[int], int]:
        """The rows to feed of a prompt, the pairs that wait among them, and how many are new."""
        arena, request = self._arena, item.request
        newest, first = item.start + item.num_rows - 1, drafted - self._behind
        arena.fed[request.id] = max(drafted, newest + self._behind - self._not_final)
        if item.samples:
            del arena.fed[request.id]
        if first >= newest:
            return None, [], 0
        group = rollout.cache.rows(request, drafted, request.tokens[first + 1 : newest + 1])
        waiting = arena.rows_of(request, first, min(item.start, newest))
        return group, waiting, newest - first - len(waiting)


def _cached_tokens(plan: StepPlan) -> int:
    """Tokens whose K/V a step reads, at least."""
    return sum(item.start + item.num_rows for item in plan.items)


def _copied(plan: StepPlan, result: Tensor) -> _Launched:
    """Have the result copied to the host, without waiting."""
    if result.device.type == "cpu":
        return _Launched(plan, result, None)
    host = torch.empty(result.shape, dtype=result.dtype, pin_memory=True)
    host.copy_(result, non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record()
    return _Launched(plan, host, copied)
