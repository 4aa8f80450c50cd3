"""SentencePiece's merges: of all neighbours that form a token, join the pair whose token has the
best score, the leftmost of ties.

BPE in the tokenizers library joins pairs in the order of a list, which cannot express "leftmost":
of ``na`` and ``an``, either may begin first. For vocabularies in which tokens share a score, pairs
are therefore joined here, by a pre-tokenizer that splits a text into its tokens, and the model only
looks these up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush
from typing import Any


def merges_by_score(
    scores: Mapping[str, float], ids: Mapping[str, int]
) -> list[tuple[str, str]] | None:
    """All pairs that form a token, ordered by its score, so that a BPE model with these merges
    agrees with SentencePiece. None if no list does: if characters are joined that are not tokens,
    or if tokens share a score, except runs of one character (such as all runs of spaces in Llama
    2)."""
    found = []
    for token, score in scores.items():
        run = _is_run(token)
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            knows_left, knows_right = left in scores, right in scores
            if knows_left and knows_right:
                # Of a run (of spaces, say) the longest that has begun grows on. In ABA the pair
                # (AB, A) lies to the left of (A, BA) where the two overlap.
                first = -cut if run else not token.startswith(right)
                found.append((-score, first, ids[left], ids[right], left, right))
            elif (knows_left or cut == 1) and (knows_right or cut == len(token) - 1):
                return None
    words = {left + right for *_, left, right in found}
    alike: dict[float, list[str]] = {}
    for word in words:
        alike.setdefault(scores[word], []).append(word)
    for tied in alike.values():
        # The runs of one character, and all of them.
        if len(tied) > 1 and not (_is_run("".join(tied)) and _runs(words, tied[0][0]) == len(tied)):
            return None
    return [(left, right) for *_, left, right in sorted(found)]


def _runs(words: Iterable[str], character: str) -> int:
    return sum(word[0] == character and _is_run(word) for word in words)


def _is_run(text: str) -> bool:
    return text == text[0] * len(text)


class LeftmostMerges:
    """A pre-tokenizer to wrap in `tokenizers.pre_tokenizers.PreTokenizer.custom`.

    ``scores``: of the tokens that pairs may form; the highest is joined first.
    """

    def __init__(self, scores: Mapping[str, float]) -> None:
        self._scores = scores

    def pre_tokenize(self, text: Any) -> None:
        """Called by the tokenizers library with the text between special tokens."""
        text.split(self._cut)

    def _cut(self, _: int, text: Any) -> list[Any]:
        return [text[begin:end] for begin, end in self.pieces(text.normalized)]

    def pieces(self, text: str) -> Iterable[tuple[int, int]]:
        """The start and end of each token of a text; a character that joins with nothing is its own
        piece."""
        size = len(text)
        ends = list(range(1, size + 1))  # of the symbol that begins there; 0: none does any more
        begins = list(range(-1, size))  # of the symbol that ends there
        found = [pair for at in range(size - 1) if (pair := self._pair(text, at, at + 1, at + 2))]
        heapify(found)
        while found:
            _, left, right, end = heappop(found)
            if ends[left] != right or ends[right] != end:
                continue  # one of the two has been joined to another meanwhile
            ends[left], ends[right], begins[end] = end, 0, left
            before = begins[left]
            if before >= 0 and (pair := self._pair(text, before, left, end)):
                heappush(found, pair)
            if end < size and (pair := self._pair(text, left, end, ends[end])):
                heappush(found, pair)
        return [(begin, end) for begin, end in enumerate(ends) if end]

    def _pair(
        self, text: str, left: int, right: int, end: int
    ) -> tuple[float, int, int, int] | None:
        """Two neighbours with their priority, or None if they form no token."""
        score = self._scores.get(text[left:end])
        return None if score is None else (-score, left, right, end)
