"""ToyDrafter: drafts from the root and the target's state before it."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Self

import torch
from torch import Tensor

from trtspec.executor.engines.heads_engine import HeadsEngine
from trtspec.executor.engines.pass_rollout import StopRule
from trtspec.executor.step.drafter import DrafterNeeds
from trtspec.executor.step.request import Request
from trtspec.executor.step.step_plan import StepPlan
from trtspec.executor.step.step_result import StepResult
from trtspec.speculative.draft_runtime import DraftRuntime
from trtspec.speculative.rollout_drafter import RolloutDrafter, rollout_needs

from .options import ToyDecodingConfig


class ToyDrafter(RolloutDrafter):
    """A request whose drafts were all wrong ``toy_patience`` times in a row gets no more."""

    def __init__(self, engine: HeadsEngine, config: ToyDecodingConfig) -> None:
        super().__init__(self.needs_of(config))
        self._engine = engine
        self._patience = config.toy_patience
        self._states: dict[int, Tensor] = {}
        self._failures: dict[int, int] = {}

    @classmethod
    def of(cls, config: ToyDecodingConfig, draft: DraftRuntime) -> Self:
        return cls(draft.heads, config)

    @staticmethod
    def needs_of(config: ToyDecodingConfig) -> DrafterNeeds:
        return rollout_needs(config, reads_hidden=True)

    def on_accepted(self, batch: StepPlan, result: StepResult) -> list[tuple[int, ...]]:
        for i, (item, hidden) in enumerate(zip(batch.items, result.hidden_of(batch), strict=True)):
            request = item.request
            if len(hidden):
                self._states[request.id] = hidden[-1].clone()
            if result.drafts.counts[i]:
                missed = result.num_emitted(i) == 1
                self._failures[request.id] = missed * (self._failures.get(request.id, 0) + 1)
        return [()] * len(batch.items)

    def release(self, request_id: int) -> None:
        self._states.pop(request_id, None)
        self._failures.pop(request_id, None)

    @property
    def live_requests(self) -> Set[int]:
        return self._states.keys() | self._failures.keys()

    def _can_draft(self, request: Request) -> bool:
        is_patient = not self._patience or self._failures.get(request.id, 0) < self._patience
        return is_patient and request.id in self._states

    def _roll_out(
        self, requests: Sequence[Request], sampling: Sequence[Tensor], rule: StopRule
    ) -> tuple[Tensor, Tensor, Tensor]:
        hidden = torch.stack([self._states[request.id] for request in requests])
        roots = torch.tensor([request.tokens[-1] for request in requests])
        return self._engine.rollout(hidden, sampling, roots)
