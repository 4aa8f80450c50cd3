"""Prompt lookup: drafts continue an earlier occurrence of the newest tokens in the same text."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import torch

from trtspec.executor.step.drafter import Drafter, DrafterNeeds
from trtspec.executor.step.step_plan import StepPlan
from trtspec.executor.step.step_result import StepResult
from trtspec.ops import native  # noqa: F401  registers the class
from trtspec.ops.draft_batch import DraftBatch
from trtspec.speculative.ngram.options import NGramDecodingConfig


class NGramDrafter(Drafter):
    """The drafter of both step loops (cpp/include/trtspec/runtime/ngram_drafter.hpp), which reads
    texts in place; no model, no cache.

    An index has all n-grams of a request's text, for n in [min_ngram, max_ngram]. The draft is what
    followed the most recent earlier occurrence of the longest indexed suffix, up to a token that
    ends the text; nothing without an occurrence. If the text ends before that, the draft continues
    itself, as a repeating text would.
    """

    def __init__(self, config: NGramDecodingConfig) -> None:
        self.needs = self.needs_of(config)
        sizes = config.max_draft_len, config.min_ngram, config.max_ngram
        drafter: Any = torch.classes.trtspec.NGramDrafter(*sizes)
        # Looking the methods up costs as much as much of what they do.
        self._prepare, self._release = drafter.prepare, drafter.release
        self._live_requests = drafter.live_requests

    @staticmethod
    def needs_of(config: NGramDecodingConfig) -> DrafterNeeds:
        return DrafterNeeds(max_nodes=config.max_draft_len, max_depth=config.max_draft_len)

    def prepare_draft_tokens(self, batch: StepPlan) -> DraftBatch:
        """A chain of at most max_nodes tokens for each item."""
        return DraftBatch(self._prepare(batch.table))

    def on_accepted(self, batch: StepPlan, result: StepResult) -> list[tuple[int, ...]]:
        """Nothing to do: an index catches up when it is next asked."""
        return [()] * len(batch.items)

    def release(self, request_id: int) -> None:
        """Drop the request's index; unknown ids are ignored."""
        self._release(request_id)

    @property
    def live_requests(self) -> Set[int]:
        return set(self._live_requests())
