"""Prompt lookup: drafts continue an earlier occurrence of the newest tokens in the same text."""

from __future__ import annotations

from collections.abc import Set

from trtspec.executor.drafter import Drafter, DrafterNeeds
from trtspec.executor.step_plan import StepPlan
from trtspec.executor.step_result import StepResult
from trtspec.ops.draft_batch import DraftBatch
from trtspec.ops.tree import TokenTree
from trtspec.speculative.ngram.index import NgramIndex
from trtspec.speculative.ngram.options import NGramDecodingConfig


class NGramDrafter(Drafter):
    """Drafter over one `NgramIndex` per request; no model, no cache."""

    def __init__(self, config: NGramDecodingConfig) -> None:
        self.needs = self.needs_of(config)
        self._config = config
        self._indexes: dict[int, NgramIndex] = {}

    @staticmethod
    def needs_of(config: NGramDecodingConfig) -> DrafterNeeds:
        return DrafterNeeds(max_nodes=config.max_draft_len, max_depth=config.max_draft_len)

    def prepare_draft_tokens(self, batch: StepPlan) -> DraftBatch:
        """A chain of at most max_nodes tokens for each item."""
        trees: list[TokenTree | None] = [None] * len(batch.items)
        for i, item in enumerate(batch.items):
            request = item.request
            count = min(
                item.max_nodes, self._config.max_draft_len, max(request.remaining_tokens - 1, 0)
            )
            if not count:
                continue
            index = self._indexes.get(request.id)
            if index is None:
                index = NgramIndex(self._config.min_ngram, self._config.max_ngram)
                self._indexes[request.id] = index
            new = request.tokens[len(index) :]
            trees[i] = index.draft(new, count, request.end_tokens)
        return DraftBatch.of(trees)

    def on_accepted(self, batch: StepPlan, result: StepResult) -> list[tuple[int, ...]]:
        """Nothing to do: the index catches up when it is next asked."""
        return [()] * len(batch.items)

    def release(self, request_id: int) -> None:
        """Drop the request's index; unknown ids are ignored."""
        self._indexes.pop(request_id, None)

    @property
    def live_requests(self) -> Set[int]:
        return self._indexes.keys()
