"""NgramIndex: where each n-gram of one text last occurred (cpp/include/trtspec/ngram_index.hpp)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from trtspec.errors import ConfigError
from trtspec.ops import native  # noqa: F401  registers the class
from trtspec.ops.tree import TokenTree


class NgramIndex:
    """An index of all n-grams of one text, for n in [min_ngram, max_ngram].

    Appending a token costs one entry of a hash table per n, a lookup at most one probe per n.
    ConfigError unless 1 <= min_ngram <= max_ngram.
    """

    def __init__(self, min_ngram: int, max_ngram: int) -> None:
        try:
            index: Any = torch.classes.trtspec.NgramIndex(min_ngram, max_ngram)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        # Looking the methods up costs as much as what they do.
        self._extend = index.extend
        self._propose = index.propose
        self._draft = index.draft
        self._size = 0

    def __len__(self) -> int:
        """Tokens taken in."""
        return self._size

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text."""
        self._extend(tokens)
        self._size += len(tokens)

    def propose(self, count: int) -> list[int]:
        """`count` tokens that followed the most recent earlier occurrence of the longest indexed
        suffix; none without an occurrence. Where the text ends before `count` tokens, the draft is
        continued from itself, as a text that repeats would go on."""
        found: list[int] = self._propose(count)
        return found

    def draft(self, tokens: Sequence[int], count: int, unwanted: Sequence[int]) -> TokenTree:
        """`extend`, then what `propose` finds up to the first of the ``unwanted`` tokens, a
        chain."""
        described = self._draft(tokens, count, unwanted)
        self._size += len(tokens)
        return TokenTree.of_native(described)
