"""Prompt lookup: drafts continue an earlier occurrence of the newest tokens in the same text."""

from __future__ import annotations

from collections.abc import Set

from trtspec.executor.drafter import Drafter, DrafterNeeds
from trtspec.executor.step_plan import StepPlan
from trtspec.executor.step_result import StepResult
from trtspec.ops.draft_batch import DraftBatch
from trtspec.speculative.ngram.indexes import NgramIndexes
from trtspec.speculative.ngram.options import NGramDecodingConfig


class NGramDrafter(Drafter):
    """Drafter over `NgramIndexes`; no model, no cache."""

    def __init__(self, config: NGramDecodingConfig) -> None:
        self.needs = self.needs_of(config)
        self._indexes = NgramIndexes(config.min_ngram, config.max_ngram)
        self._known: dict[int, int] = {}  # request id -> tokens of its text that are indexed

    @staticmethod
    def needs_of(config: NGramDecodingConfig) -> DrafterNeeds:
        return DrafterNeeds(max_nodes=config.max_draft_len, max_depth=config.max_draft_len)

    def prepare_draft_tokens(self, batch: StepPlan) -> DraftBatch:
        """A chain of at most max_nodes tokens for each item."""
        requests = [item.request for item in batch.items]
        counts, tokens = [], []
        for item, request in zip(batch.items, requests, strict=True):
            count = min(item.max_nodes, self.needs.max_nodes, request.draft_depth)
            counts.append(count)
            tokens.append(request.tokens[self._known.get(request.id, 0) :] if count > 0 else [])
            if count > 0:
                self._known[request.id] = len(request.tokens)
        if max(counts, default=0) <= 0:
            return DraftBatch.none(len(requests))
        ends = [request.end_tokens for request in requests]
        return self._indexes.draft([request.id for request in requests], tokens, counts, ends)

    def on_accepted(self, batch: StepPlan, result: StepResult) -> list[tuple[int, ...]]:
        """Nothing to do: an index catches up when it is next asked."""
        return [()] * len(batch.items)

    def release(self, request_id: int) -> None:
        """Drop the request's index; unknown ids are ignored."""
        if self._known.pop(request_id, None) is not None:
            self._indexes.release(request_id)

    @property
    def live_requests(self) -> Set[int]:
        return self._known.keys()
