"""HiddenStateDrafter: drafts with a network over the target's hidden states, one engine call per
step."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import ClassVar

import torch
from torch import Tensor

from trtspec.backends.packing import RowGroup
from trtspec.config.tree_decoding import TreeDecodingConfig
from trtspec.executor.engines.model_engine import ModelEngine
from trtspec.executor.schedule.resources import DraftCache
from trtspec.executor.step.device_rollout import DeviceRollout
from trtspec.executor.step.drafter import DrafterNeeds
from trtspec.executor.step.request import Request
from trtspec.executor.step.step_plan import StepPlan
from trtspec.executor.step.step_result import StepResult
from trtspec.speculative.rollout_drafter import CachedRolloutDrafter, rollout_needs

_MOST_WAITING = 6 << 20
"""Bytes of pending hidden states per request. While nothing is rolled out, most requests then end
before they have cost the draft anything."""


class _Pending:
    """The pending hidden states of a request, in parts that are only joined to be fed."""

    def __init__(self) -> None:
        self._parts: list[Tensor] = []
        self.num_rows = 0

    def append(self, hidden: Tensor, num_rows: int) -> None:
        """``hidden [num_rows, n*H]``."""
        self._parts.append(hidden)
        self.num_rows += num_rows

    def joined(self) -> Tensor:
        """All ``[num_rows, n*H]``, which may be kept."""
        return self._parts[0] if len(self._parts) == 1 else torch.cat(self._parts)

    def replace(self, hidden: Tensor) -> None:
        """Keep these instead."""
        self._parts, self.num_rows = [hidden], len(hidden)


def hidden_state_needs(config: TreeDecodingConfig) -> DrafterNeeds:
    """The needs for a network whose rows read the target's hidden state and the token after it."""
    return rollout_needs(config, reads_hidden=True, lookahead=1)


class HiddenStateDrafter(CachedRolloutDrafter):
    """Rolls out a network that reads the target's hidden states, after the newest of them.

    Row p of the draft cache is computed from the target's hidden state at position p and the
    ``lookahead`` tokens after it: token p + 1, and one more for each further MTP module. A row can
    be fed once the target has accepted position p, and is *final* once all these tokens are known.
    Only final rows are kept; they contain nothing but the target's own states and tokens. A state
    is *pending* while its row is not final or not fed. The newest state always is: its row predicts
    what follows the root, and the first pass of the next rollout feeds it. The other rows of a
    prefill chunk are fed with the chunk, unless the drafter is off (`StepPlan.feeds_drafts`); then,
    like the rows of a text where nothing is rolled out, once their states take much memory.

    If all of a request's prompt but the root came from the prefix cache, there is no pending state:
    nothing is drafted in the first step, which emits one token like a prefill. Tokens with K/V in
    the target's cache but no rows in this one stay without: their hidden states are gone
    (`DraftCache.absent`).
    """

    rows_behind: ClassVar[int] = 0
    """How many rows after its position a hidden state is read."""

    needs_of = staticmethod(hidden_state_needs)

    def __init__(
        self, engine: ModelEngine, cache: DraftCache, needs: DrafterNeeds, p_min: float = 0.0
    ) -> None:
        super().__init__(engine, cache, needs, p_min)
        # By request, those behind the draft cache's committed.
        self._pending: dict[int, _Pending] = {}
        self._fed: dict[int, int] = {}
        # How many rows up to the newest state read a token that is not known yet.
        self._not_final = max(cache.lookahead - 1, 0)
        self._lost: set[int] = set()  # requests of which states are missing

    def _on_device(self) -> DeviceRollout:
        fixed = self.needs.max_depth, self.rows_behind, self._not_final, self.longest
        return DeviceRollout(self._engine, self._cache, self, *fixed)

    def take(self, request: Request) -> Tensor | None:
        """See `PendingStates`."""
        pending = self._pending.pop(request.id, None)
        return None if pending is None else pending.joined()

    def give_back(self, request: Request, hidden: Tensor | None) -> None:
        """See `PendingStates`."""
        if hidden is None:
            self._lost.add(request.id)
        elif len(hidden):
            pending = self._pending[request.id] = _Pending()
            pending.append(hidden, len(hidden))

    def _is_over(self, request: Request) -> bool:
        return request.id in self._lost or super()._is_over(request)

    def _can_draft(self, request: Request) -> bool:
        return request.id in self._pending

    def _first_pass(self, requests: Sequence[Request]) -> tuple[list[RowGroup], Tensor]:
        groups = []
        states = []
        for request in requests:
            pending = self._pending[request.id]
            hidden = pending.joined()
            start = self._cache.committed(request)
            final = max(len(hidden) - self._not_final, 0)
            self._fed[request.id] = start + final
            if final < len(hidden):
                pending.replace(hidden[final:])
            else:
                del self._pending[request.id]
            groups.append(self._group(request, start, len(hidden)))
            states.append(hidden)
        return groups, torch.cat(states)

    def on_accepted(self, batch: StepPlan, result: StepResult) -> list[tuple[int, ...]]:
        """Store the hidden states of accepted rows. Feed those of prefill chunks except the newest,
        those that are many, and at the end of a text those that complete a block, if that makes
        rows final."""
        if result.drafted is not None:
            return self._drafted_on_device(batch, result.drafted)
        lengths: list[tuple[int, ...]] = []
        groups = []
        states = []
        for item, hidden in zip(batch.items, result.hidden_of(batch), strict=True):
            request = item.request
            if not request.may_draft:
                lengths.append((self._cache.committed(request),))
                continue
            start = self._fed.pop(request.id, None)
            if start is None:
                start = self._cache.committed(request)
                if not request.is_finished and self._is_over(request):
                    self._pending.pop(request.id, None)
                    lengths.append((start,))
                    continue
            pending = self._pending.get(request.id)
            if pending is None:
                pending = self._pending[request.id] = _Pending()
                if self.rows_behind and start == item.start:
                    # The state before these is none, or went with a prefix out of the cache.
                    pending.append(hidden.new_zeros(1, hidden.shape[1]), 1)
            num_pending, count = pending.num_rows, len(hidden)
            pending.append(hidden, count)
            most = _MOST_WAITING // (hidden.shape[1] * hidden.element_size())
            is_due = batch.feeds_drafts or num_pending + count > most
            fed = num_pending + count - 1 if is_due and not item.is_generation else 0
            if num_pending >= most and item.max_nodes > 0 and item.is_generation:
                fed = min(num_pending, num_pending + count - 1)
            if request.is_finished and batch.feeds_drafts and count:
                # Else its next turn would find more in the target's cache than in this one.
                rows = num_pending + count - self.rows_behind
                fed = self._cache.rows_to_offer(request, start, rows, self._not_final)
            final = max(fed - self._not_final, 0)
            if final:
                whole = pending.joined()
                groups.append(self._group(request, start, fed))
                states.append(whole[:fed])
                # A copy: a view would keep the states of the whole chunk.
                pending.replace(whole[final:].clone())
            lengths.append((start + final,))
        if groups:
            self._engine.feed(groups, torch.cat(states))
        return lengths

    def release(self, request_id: int) -> None:
        super().release(request_id)
        self._pending.pop(request_id, None)
        self._fed.pop(request_id, None)
        self._lost.discard(request_id)

    @property
    def live_requests(self) -> Set[int]:
        return super().live_requests | self._pending.keys() | self._fed.keys() | self._lost

    def _group(self, request: Request, start: int, count: int) -> RowGroup:
        """Rows start .. start + count - 1 of the draft cache, each with the token after its
        state."""
        first = start + 1 - self.rows_behind
        tokens = request.tokens[first : first + count]
        assert len(tokens) == count, "a state's next token is known when its row is fed"
        return self._cache.rows(request, start, tokens)


def behind_needs(config: TreeDecodingConfig) -> DrafterNeeds:
    """The needs for a network whose rows read their own token and the target's hidden state before
    it."""
    return rollout_needs(config, reads_hidden=True, lookahead=0)


class BehindDrafter(HiddenStateDrafter):
    """The same for a network whose row p + 1 reads the hidden state at position p, with its own
    token: it has one more row, the first, which reads a state of zeros."""

    rows_behind = 1
    needs_of = staticmethod(behind_needs)
