"""EagleDrafter: a network over the target's hidden states drafts, one engine call a step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trtspec.config.tree_decoding import EagleFamilyConfig
from trtspec.executor.batch import ScheduledBatch
from trtspec.executor.drafter import Accepted, DrafterNeeds
from trtspec.executor.model_engine import ModelEngine
from trtspec.executor.packing import RowGroup
from trtspec.executor.request import Request
from trtspec.executor.resources import ResourceManager
from trtspec.speculative.rollout import CachedRolloutDrafter, rollout_needs


class EagleDrafter(CachedRolloutDrafter):
    """Rolls out an EAGLE network behind the target's newest states.

    Row p of the draft cache is made of the target's state at position p and of token p + 1. So it
    can be fed as soon as the target has accepted position p, and only rows made of the target's own
    states are ever kept. States that have not been fed yet are *pending*; the newest one always
    is: the first pass of the next rollout needs a row, the one whose output predicts behind the
    root. A prefill chunk's other rows are fed with the chunk.

    A request whose whole prompt but the root came out of the prefix cache has no pending state: it
    drafts nothing in its first step, which, as a prefill does, emits one token.
    """

    def __init__(
        self, engine: ModelEngine, resources: ResourceManager, config: EagleFamilyConfig
    ) -> None:
        super().__init__(engine, resources, self.needs_of(config))
        self._pending: dict[int, Tensor] = {}  # [rows behind the draft cache's committed, n*H]
        self._fed: dict[int, int] = {}

    @staticmethod
    def needs_of(config: EagleFamilyConfig) -> DrafterNeeds:
        return rollout_needs(config, reads_hidden=True)

    def _can_draft(self, request: Request) -> bool:
        return request.id in self._pending

    def _first_pass(self, requests: Sequence[Request]) -> tuple[list[RowGroup], Tensor]:
        groups = []
        states = []
        for request in requests:
            hidden = self._pending.pop(request.id)
            start = self._resources.draft_committed(request)
            self._fed[request.id] = start + len(hidden)
            groups.append(self._group(request, start, len(hidden)))
            states.append(hidden)
        return groups, torch.cat(states)

    def on_accepted(self, batch: ScheduledBatch, accepted: Sequence[Accepted]) -> list[int]:
        """Keep the states of accepted rows; feed those of prefill chunks but the newest."""
        lengths = []
        groups = []
        states = []
        for item, outcome in zip(batch.items, accepted, strict=True):
            request, hidden = item.request, outcome.hidden
            assert hidden is not None, "the target hands out its states"
            start = self._fed.pop(request.id, self._resources.draft_committed(request))
            if request.id in self._pending:
                hidden = torch.cat((self._pending[request.id], hidden))
            count = 0 if item.is_generation else len(hidden) - 1
            if count > 0:
                groups.append(self._group(request, start, count))
                states.append(hidden[:count])
                # A copy: a view would keep the states of the whole chunk.
                hidden = hidden[count:].clone()
            self._pending[request.id] = hidden
            lengths.append(start + count)
        if groups:
            self._engine.feed(groups, torch.cat(states))
        return lengths

    def release(self, request_id: int) -> None:
        self._pending.pop(request_id, None)
        self._fed.pop(request_id, None)

    def _group(self, request: Request, start: int, count: int) -> RowGroup:
        """Rows start .. start + count - 1 of the draft cache, each with the token after it."""
        tokens = request.tokens[start + 1 : start + 1 + count]
        assert len(tokens) == count, "a state's next token is known when its row is fed"
        return RowGroup(tokens, start, self._resources.draft_block_table(request))
