"""NgramIndex: against the plain Python one on long texts, and what it refuses."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtspec.errors import ConfigError
from trtspec.speculative.ngram.index import NgramIndex

from .ngram_reference import PlainNgramIndex

TOKENS = st.lists(st.sampled_from((0, 1, 2, -1, 2**40, 2**63 - 1, -(2**63))), max_size=25)


@given(st.integers(1, 4), st.integers(0, 5), st.lists(st.tuples(TOKENS, st.integers(0, 9))))
@settings(max_examples=200, deadline=None)
def test_the_same_drafts(low: int, more: int, pieces: list[tuple[list[int], int]]) -> None:
    index, plain = NgramIndex(low, low + more), PlainNgramIndex(low, low + more)
    for tokens, count in pieces:
        index.extend(tokens)
        plain.extend(tokens)
        assert len(index) == len(plain)
        assert index.propose(count) == plain.propose(count)


@pytest.mark.parametrize("vocab", [4, 300])
def test_a_long_text(vocab: int) -> None:
    rng = random.Random(vocab)
    index, plain = NgramIndex(1, 4), PlainNgramIndex(1, 4)
    for _ in range(2000):
        tokens = [rng.randrange(vocab) for _ in range(rng.randint(1, 6))]
        index.extend(tokens)
        plain.extend(tokens)
        assert index.propose(6) == plain.propose(6)


@pytest.mark.parametrize(("low", "high"), [(0, 2), (3, 2), (-1, -1)])
def test_bad_sizes_are_refused(low: int, high: int) -> None:
    with pytest.raises(ConfigError, match=f"got {low} and {high}"):
        NgramIndex(low, high)


def test_a_refused_text_leaves_the_index_as_it_was() -> None:
    index = NgramIndex(1, 2)
    index.extend([1, 2, 1])
    with pytest.raises(RuntimeError):
        index.extend([3, 2**63])
    assert len(index) == 3 and index.propose(1) == [2]
