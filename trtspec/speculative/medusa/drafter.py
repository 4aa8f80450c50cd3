"""MedusaDrafter: drafts with heads on the target's newest hidden state, one engine call per
step."""

from __future__ import annotations

from collections.abc import Sequence, Set

import torch
from torch import Tensor

from trtspec.executor.engines.heads_engine import HeadsEngine
from trtspec.executor.engines.pass_rollout import StopRule
from trtspec.executor.step.drafter import DrafterNeeds
from trtspec.executor.step.request import Request
from trtspec.executor.step.step_plan import StepPlan
from trtspec.executor.step.step_result import StepResult
from trtspec.speculative.medusa.options import MedusaDecodingConfig
from trtspec.speculative.rollout_drafter import RolloutDrafter, rollout_needs


class MedusaDrafter(RolloutDrafter):
    """Drafts from the target's hidden state of the newest accepted row, the one before the root's.

    Nothing else is stored per request. If all of a request's prompt but the root came from the
    prefix cache there is no state yet: nothing is drafted in the first step, which emits one token
    like a prefill.
    """

    def __init__(self, engine: HeadsEngine, config: MedusaDecodingConfig) -> None:
        super().__init__(self.needs_of(config))
        self._engine = engine
        self._states: dict[int, Tensor] = {}  # [H]

    @staticmethod
    def needs_of(config: MedusaDecodingConfig) -> DrafterNeeds:
        return rollout_needs(config, reads_hidden=True)

    def on_accepted(self, batch: StepPlan, result: StepResult) -> list[tuple[int, ...]]:
        """Keep the state of each request's newest row."""
        for item, hidden in zip(batch.items, result.hidden_of(batch), strict=True):
            if len(hidden) and item.request.may_draft:  # a request that failed has no rows
                # A copy: a view would keep the states of the whole step.
                self._states[item.request.id] = hidden[-1].clone()
        return [()] * len(batch.items)

    def release(self, request_id: int) -> None:
        self._states.pop(request_id, None)

    @property
    def live_requests(self) -> Set[int]:
        return self._states.keys()

    def _can_draft(self, request: Request) -> bool:
        return request.id in self._states

    def _roll_out(
        self, requests: Sequence[Request], sampling: Sequence[Tensor], rule: StopRule
    ) -> tuple[Tensor, Tensor, Tensor]:
        hidden = torch.stack([self._states[request.id] for request in requests])
        return self._engine.rollout(hidden, sampling)
