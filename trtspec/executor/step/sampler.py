"""Sampler: turns the logits of a step's rows into the tokens that each request emits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import torch
from torch import Tensor

from trtspec.backends.staging import Staging
from trtspec.errors import TrtspecError
from trtspec.executor.engines.model_engine import ModelEngine
from trtspec.executor.engines.verify_call import VerifyOutputs
from trtspec.executor.logits.logits_mask import columns_of
from trtspec.executor.step import sampling_rows
from trtspec.executor.step.acceptance_rule import AcceptanceRule
from trtspec.executor.step.prompt_logprobs import PromptRows
from trtspec.executor.step.request import Request
from trtspec.executor.step.request_processors import LogitsChange, RequestProcessors
from trtspec.executor.step.simulation import SimulatedAcceptance
from trtspec.executor.step.step_plan import StepPlan
from trtspec.executor.step.verification import Verification, places
from trtspec.ops.acceptance import accept
from trtspec.ops.draft_batch import DraftBatch
from trtspec.ops.logits_mask import MaskColumns, mask_logits
from trtspec.ops.sampling import sample


class Sampler:
    """Has the target's rows verified: applies each request's options, samples every row and walks
    every tree.

    ``rule``: accept other drafts than those that the target emits, or a random number of them; the
    text is then not its own.
    """

    def __init__(self, rule: AcceptanceRule | None = None) -> None:
        self._rule = rule
        self._processors = RequestProcessors()
        self._staging: Staging | None = None

    def begin(self, request: Request) -> None:
        """A request arrives, whose rows will be verified until it is released."""
        self._processors.begin(request)

    def needs_host(self, request: Request) -> bool:
        """Whether a request needs more than an engine that samples can do."""
        is_changed = request.id in self._processors.live_requests
        params = request.params
        reads = params.logprobs is not None or params.prompt_logprobs is not None
        return self._rule is not None or is_changed or reads

    def shape_drafts(self, plan: StepPlan, drafts: DraftBatch, max_depth: int) -> DraftBatch:
        """See `RequestProcessors.shape_drafts`."""
        return self._processors.shape_drafts(plan, drafts, max_depth)

    def launch(self, target: ModelEngine, plan: StepPlan, drafts: DraftBatch) -> Verification:
        """Feed a step's rows and ``drafts`` to the target, and verify the rows of the items that
        sample. A target that ``verifies`` does so within the same call, unless a request's
        processors change its logits first, or a rule decides on drafts: then what that call samples
        is ignored.

        Masks are not inputs of that call: its captured graph would have to copy and read a bit per
        token and row in every step, even without a mask. After the call they are one op on the same
        stream.
        """
        packed = plan.pack(target.layout, drafts)
        prompts = PromptRows(plan, drafts)
        changes = self._processors.changes(plan, drafts)
        if prompts:
            every, hidden = target.forward(prompts.added_to(packed))
            logits, found = prompts.split(every)
            verification = self._verify(plan, drafts, changes, logits, hidden)
            verification.prompts = found
            return verification
        if target.verifies and not self._forces(drafts) and not any(changes):
            asked = sampling_rows.verify_inputs(plan, drafts)
            logits, hidden, outputs = target.verify(packed, asked)
            raw = _raw(plan, drafts, logits)
            return _decided(plan, drafts, hidden, outputs, raw)
        logits, hidden = target.forward(packed)
        return self._verify(plan, drafts, changes, logits, hidden)

    def fault(self, request: Request, vocab_size: int) -> TrtspecError | None:
        """See `RequestProcessors.fault`."""
        return self._processors.fault(request, vocab_size)

    def release(self, request_id: int) -> None:
        """Forget a request that ended; unknown ids are ignored."""
        self._processors.release(request_id)

    @property
    def live_requests(self) -> Set[int]:
        """The ids of requests of which something is stored."""
        return self._processors.live_requests

    def _forces(self, drafts: DraftBatch) -> bool:
        """Whether the rule has something to decide; without drafts it has not."""
        return self._rule is not None and any(drafts.counts)

    def _verify(
        self,
        plan: StepPlan,
        drafts: DraftBatch,
        changes: Sequence[LogitsChange | None],
        logits: Tensor,
        hidden: Tensor | None,
    ) -> Verification:
        """Verify the rows of the items that sample: ``logits [R, V]``, changed in place, holds for
        each item the row of its newest token and one row per node of its draft. Everything happens
        where the logits are: on the host in one call, otherwise on the device after the target's
        call, to which options, trees and masks go in one more copy. Only a rule waits for the
        samples."""
        raw = _raw(plan, drafts, logits)
        mask = _mask(changes, places(plan, drafts), logits) if any(changes) else None
        rule, forced = self._rule if self._forces(drafts) else None, list[int]()
        if isinstance(rule, SimulatedAcceptance):
            forced, rule = [rule.accepted(item.request) for item in plan.items], None
        if rule is None and logits.device.type == "cpu":
            result = sampling_rows.verify(plan, drafts, logits, forced, mask)
            return Verification(plan, lambda: result, hidden, raw)
        if self._staging is None:
            self._staging = Staging(logits.device)
        columns, *nodes = sampling_rows.verify_inputs(plan, drafts)
        if forced:
            nodes.append(torch.tensor(forced, dtype=torch.int32))
        masked = [] if mask is None else [column for column in mask if column is not None]
        placed = self._staging.to_device([*masked, *columns, *nodes])
        if mask is not None:
            mask_logits(logits, mask.replaced(placed[: len(masked)]))
        walked = placed[len(masked) + len(columns) :]
        sampled = sample(logits, *placed[len(masked) : len(masked) + len(columns)])
        if rule is not None:
            choices = sampled.cpu()
            owned = zip(plan.items, drafts, places(plan, drafts), strict=True)
            for item, tree, own in owned:
                if item.samples:
                    rule.force(item.request, tree, choices[own].numpy(), logits[own])
            sampled = choices.to(logits.device)
        outputs = VerifyOutputs(sampled)
        if any(drafts.counts):
            outputs = VerifyOutputs(sampled, *accept(sampled, *walked))
        return _decided(plan, drafts, hidden, outputs, raw)


def _decided(
    plan: StepPlan,
    drafts: DraftBatch,
    hidden: Tensor | None,
    outputs: VerifyOutputs,
    raw: Mapping[int, Tensor],
) -> Verification:
    """A verification from tensors, whose copy to the host begins at once: an engine's next call may
    overwrite them."""
    read = sampling_rows.read(drafts, outputs)
    return Verification(plan, lambda: sampling_rows.decode(plan, drafts, read), hidden, raw)


def _mask(
    changes: Sequence[LogitsChange | None], owned: Sequence[slice], logits: Tensor
) -> MaskColumns | None:
    """The mask of all rows, made of each item's. Processors that need the logits are applied to
    these now."""
    masks = []
    for change, own in zip(changes, owned, strict=True):
        if change is not None:
            own_masks = change.masks
            if own_masks is None:
                change.apply(logits[own])
            else:
                masks += [(own, mask) for mask in own_masks]
    return columns_of(masks, *logits.shape)


def _raw(plan: StepPlan, drafts: DraftBatch, logits: Tensor) -> dict[int, Tensor]:
    """The raw model's log probabilities, for the items that want some, by place."""
    if all(item.request.params.logprobs is None for item in plan.items):
        return {}
    return {
        i: torch.log_softmax(logits[own], dim=-1)
        for i, (item, own) in enumerate(zip(plan.items, places(plan, drafts), strict=True))
        if item.samples and item.request.params.logprobs is not None
    }
