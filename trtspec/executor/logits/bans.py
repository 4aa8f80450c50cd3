"""BadWords and MinTokens: tokens that are banned in some rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trtspec.executor.logits.logits_mask import LogitsMask
from trtspec.executor.logits.logits_processor import LogitsProcessor
from trtspec.ops.tree import TokenTree


class BadWords(LogitsProcessor):
    """Bans tokens that would complete a bad word, wherever in prompt or output it began."""

    def __init__(self, words: Sequence[tuple[int, ...]]) -> None:
        self._always = sorted({word[0] for word in words if len(word) == 1})
        # Longer words by the last token before the banned one, so that a row looks at few.
        self._after: dict[int, list[tuple[int, ...]]] = {}
        for word in words:
            if len(word) > 1:
                self._after.setdefault(word[-2], []).append(word)
        self._tail_length = max(len(word) - 1 for word in words)
        self._tail: list[int] = []

    def extend(self, tokens: Sequence[int]) -> None:
        if self._tail_length:
            self._tail = [*self._tail, *tokens[-self._tail_length :]][-self._tail_length :]

    def mask(self, tree: TokenTree) -> LogitsMask | None:
        banned = [(row, token) for row in range(1 + len(tree)) for token in self._always]
        for row in range(1 + len(tree)) if self._after else ():
            text = self._tail if row == 0 else [*self._tail, *tree.path_tokens(row - 1)]
            for word in self._after.get(text[-1], ()) if text else ():
                if tuple(text[1 - len(word) :]) == word[:-1]:
                    banned.append((row, word[-1]))
        return _banned(banned)


class MinTokens(LogitsProcessor):
    """Bans tokens that end the text before it has ``min_tokens`` output tokens."""

    def __init__(self, min_tokens: int, num_prompt_tokens: int, end_tokens: Sequence[int]) -> None:
        self._end_tokens = sorted(set(end_tokens))
        self._missing = num_prompt_tokens + min_tokens

    def extend(self, tokens: Sequence[int]) -> None:
        self._missing -= len(tokens)

    def mask(self, tree: TokenTree) -> LogitsMask | None:
        if self._missing <= 0:
            return None
        depths = [0, *tree.depths.tolist()]
        early = [row for row, depth in enumerate(depths) if depth < self._missing]
        return _banned([(row, token) for row in early for token in self._end_tokens])


def _banned(pairs: Sequence[tuple[int, int]]) -> LogitsMask | None:
    if not pairs:
        return None
    rows, ids = torch.tensor(pairs, dtype=torch.int64).unbind(1)
    return LogitsMask(banned=(rows, ids))
