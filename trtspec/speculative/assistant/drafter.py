"""AssistantDrafter: drafts with a network over the target's K/V, one engine call per step."""

from __future__ import annotations

from collections.abc import Sequence, Set

import torch
from torch import Tensor

from trtspec.backends.packing import RowGroup
from trtspec.config.tree_decoding import TreeDecodingConfig
from trtspec.executor.engines.model_engine import ModelEngine
from trtspec.executor.engines.pass_rollout import StopRule
from trtspec.executor.step.drafter import DrafterNeeds
from trtspec.executor.step.request import Request
from trtspec.executor.step.step_plan import StepPlan
from trtspec.executor.step.step_result import StepResult
from trtspec.ops.draft_batch import DraftBatch
from trtspec.speculative.rollout_drafter import RolloutDrafter, rollout_needs


class AssistantDrafter(RolloutDrafter):
    """Drafts from the target's hidden state of the newest accepted row, the one before the root's,
    and from the committed part of the target's caches.

    It stores only that state per request. If all of a request's prompt but the root came from the
    prefix cache there is none yet, and the first step drafts nothing.
    """

    def __init__(self, engine: ModelEngine, needs: DrafterNeeds) -> None:
        super().__init__(needs)
        self._engine = engine
        self._states: dict[int, Tensor] = {}  # [H_t]
        self._places: dict[int, tuple[int, Tensor]] = {}  # of this step: committed length, blocks

    @staticmethod
    def needs_of(config: TreeDecodingConfig) -> DrafterNeeds:
        """Known before any engine is loaded."""
        return rollout_needs(config, reads_hidden=True)

    def prepare_draft_tokens(self, batch: StepPlan) -> DraftBatch:
        """See `Drafter.prepare_draft_tokens`; the plan says where the target's K/V are."""
        self._places = {
            item.request.id: (item.start, blocks)
            for item, blocks in zip(batch.items, batch.blocks, strict=True)
        }
        drafts = super().prepare_draft_tokens(batch)
        self._places = {}
        return drafts

    def on_accepted(self, batch: StepPlan, result: StepResult) -> list[tuple[int, ...]]:
        """Keep the state of each request's newest row."""
        for item, hidden in zip(batch.items, result.hidden_of(batch), strict=True):
            if len(hidden) and item.request.may_draft:  # a request that failed has no rows
                # A copy: a view would keep the states of the whole step.
                self._states[item.request.id] = hidden[-1].clone()
        return [()] * len(batch.items)

    def release(self, request_id: int) -> None:
        self._states.pop(request_id, None)
        self._places.pop(request_id, None)

    @property
    def live_requests(self) -> Set[int]:
        return self._states.keys()

    def _can_draft(self, request: Request) -> bool:
        return request.id in self._states

    def _roll_out(
        self, requests: Sequence[Request], sampling: Sequence[Tensor], rule: StopRule
    ) -> tuple[Tensor, Tensor, Tensor]:
        groups = []
        for request in requests:
            start, blocks = self._places[request.id]
            groups.append(RowGroup([request.tokens[start]], start, blocks))
        states = torch.stack([self._states[request.id] for request in requests])
        return self._engine.rollout(groups, sampling, states)
