"""Events come out the same however the network cuts the bytes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtspec.bench.serving import sse
from trtspec.bench.serving.sse import AnswerError, EventParser

STREAM = (
    b"\xef\xbb\xbf: ping\r\n\r\n"
    b"event: message\ndata: one\n\n"
    b"data:two\r\ndata:  lines\r\n\r\n"
    b"id: 7\rdata: \xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\r\r"
    b"retry: 5\n\n: nothing\n\n"
    b"data\n\n"
    b"data: a:b\nfoo: bar\n\n"
    b"data: [DONE]\n\n"
)
EVENTS = ["one", "two\n lines", "\u00e4\u20ac\U0001f600", "", "a:b", "[DONE]"]


def parse(*chunks: bytes) -> list[str]:
    parser = EventParser()
    return [data for chunk in chunks for data in parser.feed(chunk)] + parser.close()


def test_all_of_it_at_once_and_byte_by_byte() -> None:
    assert parse(STREAM) == EVENTS
    assert parse(*(STREAM[i : i + 1] for i in range(len(STREAM)))) == EVENTS


@settings(max_examples=400)
@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_any_cuts(cuts: list[int]) -> None:
    borders = [0, *sorted(cuts), len(STREAM)]  # equal borders: empty chunks
    assert parse(*(STREAM[a:b] for a, b in itertools.pairwise(borders))) == EVENTS


@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1)),
    st.data(),
)
def test_any_text_in_any_cuts(texts: list[str], data: st.DataObject) -> None:
    end = data.draw(st.sampled_from(["\n", "\r\n", "\r"]))
    stream = "".join(f"data: {text}{end}{end}" for text in texts).encode()
    cut = data.draw(st.integers(0, len(stream)))
    assert parse(stream[:cut], stream[cut:]) == texts


def test_an_event_is_there_as_soon_as_its_blank_line_is() -> None:
    parser = EventParser()
    assert parser.feed(b"data: a\r\n") == []
    assert parser.feed(b"\r") == ["a"]  # whether or not a line feed follows
    assert parser.feed(b"") == []
    assert parser.feed(b"\ndata: b\n\ndata: c") == ["b"]
    assert parser.close() == ["c"]
    assert parser.close() == []


def test_an_end_without_a_blank_line() -> None:
    assert parse(b"data: a\n\ndata: [DONE]\n") == ["a", "[DONE]"]
    assert parse(b"data: a\n\ndata: [DONE]") == ["a", "[DONE]"]
    assert parse(b"data: a\n\n: ping") == ["a"]
    assert parse(b"") == parse(b"\n\n") == []


def test_what_is_not_text() -> None:
    with pytest.raises(AnswerError, match="not UTF-8"):
        parse(b"data: \xff\xfe\n\n")


def test_an_event_without_an_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 100)
    assert parse(*[b"data: 0123456789\n\n"] * 50) == ["0123456789"] * 50
    with pytest.raises(AnswerError, match="longer than 100 bytes"):
        parse(*[b"data: 0123456789\n"] * 50)
    with pytest.raises(AnswerError, match="longer than 100 bytes"):
        parse(b"data: ", *[b"0123456789"] * 50)
