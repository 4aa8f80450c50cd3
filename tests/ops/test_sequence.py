"""TokenSequence: what Python reads of a text is what a list would say."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtspec.ops.sequence import TokenSequence

INTS = st.lists(st.integers(0, 2**40), min_size=1, max_size=12)
PLACES = st.none() | st.integers(-20, 20)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(INTS, INTS, PLACES, PLACES, st.none() | st.integers(1, 3))
def test_it_reads_as_a_list(
    prompt: list[int], more: list[int], begin: int | None, end: int | None, step: int | None
) -> None:
    text = TokenSequence(0, prompt, 99)
    for expected in (list(prompt), [*prompt, *more]):
        part = slice(begin, end, step)
        assert (len(text), list(text), text[part]) == (len(expected), expected, expected[part])
        assert list(reversed(text)) == expected[::-1] and expected[0] in text
        for place in (begin, end):
            if place is None:
                continue
            if -len(expected) <= place < len(expected):
                assert text[place] == expected[place]
            else:
                with pytest.raises(IndexError, match=f"token {place} of a text of {len(expected)}"):
                    text[place]
        if expected == prompt:
            text.extend(more)


def test_it_is_no_view_of_its_prompt_and_outlives_it() -> None:
    prompt = [1, 2, 3]
    text = TokenSequence(7, prompt, 9)
    prompt.append(4)
    taken = text[1:]
    taken.append(5)
    del prompt
    gc.collect()
    assert repr(text) == "TokenSequence([1, 2, 3])"
    with pytest.raises(TypeError):
        text[0] = 5  # type: ignore[index]
