"""TokenDrafter: drafts a chain or tree with a smaller language model."""

from __future__ import annotations

from collections.abc import Sequence, Set
from itertools import pairwise, zip_longest

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

MOST_BEHIND = 256
"""Rows by which a draft cache may lag behind the target's. While nothing is rolled out, most
requests then end before they have cost the draft anything."""


def token_needs(config: TreeDecodingConfig) -> DrafterNeeds:
    """The needs for a network that reads only tokens."""
    return rollout_needs(config, lookahead=0)


class TokenDrafter(CachedRolloutDrafter):
    """Rolls out a draft model after the accepted tokens of every generating request.

    A prompt is fed to the draft as the target reads it. If `StepPlan.feeds_drafts` is False, a
    prompt waits, like the text, for the next rollout, or until `MOST_BEHIND` rows are due; in a
    cache with a window it does not wait, since there may be no room for rows that are due.
    """

    needs_of = staticmethod(token_needs)

    def __init__(
        self, engine: ModelEngine, cache: DraftCache, needs: DrafterNeeds, p_min: float = 0.0
    ) -> None:
        super().__init__(engine, cache, needs, p_min)
        self._fed: dict[int, int] = {}

    def _can_draft(self, request: Request) -> bool:
        return True

    def _on_device(self) -> DeviceRollout:
        # Row p + 1 reads the token behind position p, and no state.
        fixed = self.needs.max_depth, 1, 0, self.longest
        return DeviceRollout(self._engine, self._cache, None, *fixed)

    def _first_pass(self, requests: Sequence[Request]) -> tuple[list[RowGroup], None]:
        parts = []
        for request in requests:
            self._fed[request.id] = end = len(request.tokens)
            parts.append(self._parts(request, self._cache.committed(request), end))
        return self._feed_but_last(parts), None

    def on_accepted(self, batch: StepPlan, result: StepResult) -> list[tuple[int, ...]]:
        """Feed prefill chunks to the draft, or all rows that are due; returns the draft cache's
        length for each item."""
        if result.drafted is not None:
            return self._drafted_on_device(batch, result.drafted)
        lengths: list[tuple[int, ...]] = []
        parts = []
        for item in batch.items:
            request = item.request
            start = self._cache.committed(request)
            end = item.start + item.num_rows
            fed = self._fed.pop(request.id, None)
            if fed is None:
                has_room = request.may_draft and (item.max_nodes > 0 or not item.is_generation)
                feeds = batch.feeds_drafts or self._cache.window > 0
                is_due = feeds and not item.is_generation
                due = has_room and (is_due or end - start >= MOST_BEHIND)
                if not due or self._is_over(request):
                    fed = start
            if fed is not None:
                lengths.append((fed,))
                continue
            lengths.append((end,))
            # A call is to be no larger than the target's: what it is behind by is fed before.
            chunk = start if item.is_generation else item.start
            behind = self._parts(request, start, chunk) if start < chunk else []
            parts.append([*behind, *self._parts(request, chunk, end)])
        if parts:
            self._engine.feed(self._feed_but_last(parts))
        return lengths

    def release(self, request_id: int) -> None:
        super().release(request_id)
        self._fed.pop(request_id, None)

    @property
    def live_requests(self) -> Set[int]:
        return super().live_requests | self._fed.keys()

    def _parts(self, request: Request, start: int, end: int) -> list[RowGroup]:
        """Rows from ``start`` to ``end``, of as many calls as they are cut into."""
        ends = self._cache.ends(request, start, end)
        tokens = request.tokens
        return [
            self._cache.rows(request, first, self._known(tokens[first:cut]))
            for first, cut in pairwise([start, *ends])
        ]

    def _feed_but_last(self, parts: Sequence[Sequence[RowGroup]]) -> list[RowGroup]:
        """Feed all parts of requests but the last of each, which are returned: a call has one of
        each."""
        for groups in zip_longest(*(own[:-1] for own in parts)):
            self._engine.feed([group for group in groups if group is not None])
        return [own[-1] for own in parts]

    def _known(self, tokens: Sequence[int]) -> Sequence[int]:
        """The ids that the draft reads for ``tokens``. Ids that only the target's padded embedding
        has become 0, which costs nothing but acceptance."""
        limit = self._engine.vocab_size
        if max(tokens) < limit:
            return tokens
        return [token if token < limit else 0 for token in tokens]
