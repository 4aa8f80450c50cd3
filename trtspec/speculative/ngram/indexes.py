"""NgramIndexes: the C++ indexes (cpp/include/trtspec/ngram_indexes.hpp) with types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from trtspec.errors import ConfigError
from trtspec.ops import native  # noqa: F401  registers the class
from trtspec.ops.draft_batch import DraftBatch


class NgramIndexes:
    """Of each request an index of all n-grams of its text, for n in [min_ngram, max_ngram].

    ConfigError unless 1 <= min_ngram <= max_ngram.
    """

    def __init__(self, min_ngram: int, max_ngram: int) -> None:
        try:
            indexes: Any = torch.classes.trtspec.NgramIndexes(min_ngram, max_ngram)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        # Looking the methods up costs as much as much of what they do.
        self._draft, self._release = indexes.draft, indexes.release

    def draft(
        self,
        request_ids: Sequence[int],
        tokens: Sequence[Sequence[int]],
        counts: Sequence[int],
        ends: Sequence[Sequence[int]],
    ) -> DraftBatch:
        """A chain for each item of a step that may have ``counts[i] > 0`` nodes; the others are not
        looked at.

        ``tokens[i]``, by which the request's text has grown, are taken in. Drafted is what followed
        the most recent earlier occurrence of the longest indexed suffix, up to the first of the
        ``ends[i]``; nothing without an occurrence. Where the text ends before that, the draft is
        continued from itself, as a text that repeats would go on."""
        return DraftBatch(self._draft(request_ids, tokens, counts, ends))

    def release(self, request_id: int) -> None:
        """Drop the request's index; unknown ids are ignored."""
        self._release(request_id)
