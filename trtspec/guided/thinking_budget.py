"""ThinkingBudget: forces the end of reasoning after a number of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from trtspec.executor.logits.logits_mask import LogitsMask
from trtspec.guided.output_processor import OutputProcessor
from trtspec.ops.logits_mask import pack_bits
from trtspec.ops.tree import TokenTree


class ThinkingMarks(NamedTuple):
    """The tokens between which a model reasons."""

    start: int
    end: int

    def is_open_after(self, tokens: Sequence[int]) -> bool:
        """Whether a text ends within reasoning: the last mark in it is a start."""
        last = next((token for token in reversed(tokens) if token in self), self.end)
        return last == self.start


class ThinkingBudget(OutputProcessor):
    """Counts the output tokens of reasoning; after ``budget`` of them only its end is allowed.
    ``begins_again``: a start mark in the output begins reasoning too."""

    def __init__(
        self,
        budget: int,
        marks: ThinkingMarks,
        vocab_size: int,
        prompt: Sequence[int],
        begins_again: bool = True,
    ) -> None:
        super().__init__(len(prompt))
        self._begins_again = begins_again
        self._budget, self._marks, self._vocab_size = budget, marks, vocab_size
        self._used = 0 if marks.is_open_after(prompt) else None

    def extend_output(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._used = self._after(self._used, token)

    def mask(self, tree: TokenTree) -> LogitsMask | None:
        must_end = [used is not None and used >= self._budget for used in self._counts(tree)]
        if not any(must_end):
            return None
        allowed = torch.ones(len(must_end), self._vocab_size, dtype=torch.bool)
        allowed[must_end] = torch.arange(self._vocab_size) == self._marks.end
        return LogitsMask(allowed=pack_bits(allowed))

    def forced(self, tokens: Sequence[int] = ()) -> Sequence[int]:
        used = self._used
        for token in tokens:
            used = self._after(used, token)
        return () if used is None or used < self._budget else (self._marks.end,)

    def _counts(self, tree: TokenTree) -> list[int | None]:
        """Reasoning tokens so far, by row; None: it is not reasoning."""
        counts = [self._used]
        for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
            counts.append(self._after(counts[parent + 1], token))
        return counts

    def _after(self, used: int | None, token: int) -> int | None:
        if token == self._marks.end:
            return None
        if used is None:
            return 0 if self._begins_again and token == self._marks.start else None
        return used + 1  # a start within reasoning begins no other
