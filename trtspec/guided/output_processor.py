"""OutputProcessor: the base of processors that depend on the output only."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from trtspec.executor.logits.logits_processor import LogitsProcessor


class OutputProcessor(LogitsProcessor):
    """A processor that is not told the prompt's tokens."""

    def __init__(self, num_prompt_tokens: int) -> None:
        self._prompt_left = num_prompt_tokens

    def extend(self, tokens: Sequence[int]) -> None:
        skipped = min(self._prompt_left, len(tokens))
        self._prompt_left -= skipped
        self.extend_output(tokens[skipped:])

    @abstractmethod
    def extend_output(self, tokens: Sequence[int]) -> None:
        """The output grew by these tokens, possibly none."""
