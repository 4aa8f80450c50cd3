"""NgramIndexes: against the plain Python one on long texts, and what it refuses."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtspec.errors import ConfigError
from trtspec.speculative.ngram.indexes import NgramIndexes

from .ngram_reference import PlainNgramIndex

TOKENS = st.lists(st.sampled_from((0, 1, 2, -1, 2**40, 2**63 - 1, -(2**63))), max_size=25)


class OneText:
    """The index of one text, beside those of others."""

    def __init__(self, low: int, high: int) -> None:
        self.indexes = NgramIndexes(low, high)
        self.new: list[int] = []

    def extend(self, tokens: list[int]) -> None:
        self.new += tokens

    def propose(self, count: int) -> list[int]:
        tokens, counts, ends = [[1] * 20, self.new, [2]], [1, count, 0], [(), (), ()]
        drafts = self.indexes.draft([3, 4, 5], tokens, counts, ends)
        if count:
            self.new = []
        assert drafts.counts[0] == 1 and not drafts.counts[2]
        return drafts[1].tokens.tolist()


@given(st.integers(1, 4), st.integers(0, 5), st.lists(st.tuples(TOKENS, st.integers(0, 9))))
@settings(max_examples=200, deadline=None)
def test_the_same_drafts(low: int, more: int, pieces: list[tuple[list[int], int]]) -> None:
    index, plain = OneText(low, low + more), PlainNgramIndex(low, low + more)
    for tokens, count in pieces:
        index.extend(tokens)
        plain.extend(tokens)
        assert index.propose(count) == plain.propose(count)


@pytest.mark.parametrize("vocab", [4, 300])
def test_a_long_text(vocab: int) -> None:
    rng = random.Random(vocab)
    index, plain = OneText(1, 4), PlainNgramIndex(1, 4)
    for _ in range(2000):
        tokens = [rng.randrange(vocab) for _ in range(rng.randint(1, 6))]
        index.extend(tokens)
        plain.extend(tokens)
        assert index.propose(6) == plain.propose(6)


def test_a_draft_ends_before_an_end() -> None:
    indexes = NgramIndexes(1, 2)
    text = [1, 2, 3, 4, 1]
    drafts = indexes.draft([7, 8], [text, text], [4, 4], [(9, 4), (2,)])
    assert [tree.tokens.tolist() for tree in drafts] == [[2, 3], []]
    assert drafts.max_depths == [2, 0]


def test_a_released_text_begins_anew() -> None:
    indexes = NgramIndexes(1, 1)
    assert indexes.draft([7], [[1, 2, 1]], [1], [()]).counts == [1]
    indexes.release(7)
    indexes.release(8)
    assert indexes.draft([7], [[1]], [1], [()]).counts == [0]


@pytest.mark.parametrize(("low", "high"), [(0, 2), (3, 2), (-1, -1)])
def test_bad_sizes_are_refused(low: int, high: int) -> None:
    with pytest.raises(ConfigError, match=f"got {low} and {high}"):
        NgramIndexes(low, high)


def test_a_refused_text_leaves_the_index_as_it_was() -> None:
    indexes = NgramIndexes(1, 2)
    with pytest.raises(RuntimeError):
        indexes.draft([7], [[3, 2**63]], [1], [()])
    assert indexes.draft([7], [[1, 2, 1]], [1], [()])[0].tokens.tolist() == [2]
