"""Where a text ends by its tokens alone, plainly; C++ decides it (`text_end`)."""

from __future__ import annotations

from collections.abc import Sequence

from trtspec.config.sampling import SamplingParams
from trtspec.executor.text.stopping import StopChecker


class Feed:
    """Feeds a checker what steps emit, up to where the text ends."""

    def __init__(
        self, checker: StopChecker, params: SamplingParams, eos: Sequence[int], limit: int
    ) -> None:
        ends = () if params.ignore_eos else eos
        self.checker, self._limit = checker, limit
        self._ends = {*ends, *params.stop_token_ids}

    def __call__(self, *tokens: int) -> str | None:
        """The tokens of a step: why the text ends with it."""
        room = self._limit - self.checker.num_tokens
        for i, token in enumerate(tokens[:room]):
            if token in self._ends or i == room - 1:
                reason = "stop" if token in self._ends else "length"
                self.checker.accept(tokens[: i + 1], reason)
                break
        else:
            self.checker.accept(tokens, None)
        return self.checker.finish_reason


def run(feed: Feed, tokens: Sequence[int], step: int = 1) -> int:
    """Feed tokens, so many a step; how many belong to the text."""
    for first in range(0, len(tokens), step):
        if feed(*tokens[first : first + step]):
            break
    return feed.checker.num_tokens
