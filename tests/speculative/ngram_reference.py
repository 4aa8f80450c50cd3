"""NgramIndex in plain Python: one dictionary of all n-grams. What C++ must do alike."""

from __future__ import annotations

from collections.abc import Sequence


class PlainNgramIndex:
    """Where each n-gram of one text last occurred, for n in [min_ngram, max_ngram].

    Appending a token costs one dictionary entry per n, a lookup at most one probe per n.
    """

    def __init__(self, min_ngram: int, max_ngram: int) -> None:
        self._sizes = range(max_ngram, min_ngram - 1, -1)
        self._tokens: list[int] = []
        # n-gram -> index of the token after its last occurrence. An n-gram is entered when a token
        # follows it, so the text's own suffix is never found as a match for itself.
        self._next: dict[tuple[int, ...], int] = {}

    def __len__(self) -> int:
        """Tokens taken in."""
        return len(self._tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text."""
        text = self._tokens
        for token in tokens:
            end = len(text)
            for n in self._sizes:
                if n <= end:
                    self._next[tuple(text[end - n :])] = end
            text.append(token)

    def propose(self, count: int) -> list[int]:
        """`count` tokens that followed the most recent earlier occurrence of the longest indexed
        suffix; none without an occurrence. Where the text ends before `count` tokens, the draft is
        continued from itself, as a text that repeats would go on."""
        text = self._tokens
        for n in self._sizes:
            begin = self._next.get(tuple(text[-n:])) if n <= len(text) else None
            if begin is not None:
                found = text[begin : begin + count]
                period = len(found)
                return [found[i % period] for i in range(count)] if period < count else found
        return []
