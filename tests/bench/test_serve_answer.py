"""One answer's times and tokens, from made-up streams on a made-up clock."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trtspec.bench.serving.answer import AnswerReader, RequestRecord, error_message
from trtspec.bench.serving.sse import AnswerError


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def text(text: str, reason: str | None = None) -> bytes:
    return event(choices=[{"index": 0, "text": text, "finish_reason": reason}])


def delta(reason: str | None = None, **fields: Any) -> bytes:
    return event(choices=[{"index": 0, "delta": fields, "finish_reason": reason}])


def usage(prompt: Any, output: Any) -> bytes:
    return event(choices=[], usage={"prompt_tokens": prompt, "completion_tokens": output})


DONE = b"data: [DONE]\n\n"


def read(*arrivals: tuple[float, bytes], start: float = 100.0) -> RequestRecord:
    reader = AnswerReader(3, start)
    for time, chunk in arrivals:
        reader.feed(chunk, start + time)
    return reader.close(start + 99.0)


def test_times_and_tokens() -> None:
    record = read(
        (0.5, text("a")), (0.75, text("bcd")), (1.5, text("e", "length")), (2.0, usage(7, 6)),
        (3.0, DONE),
    )  # fmt: skip
    assert (record.index, record.start, record.finish_reason) == (3, 100.0, "length")
    assert (record.ttft, record.e2e, record.itl) == (0.5, 1.5, (0.25, 0.75))
    assert (record.prompt_tokens, record.output_tokens) == (7, 6)
    assert record.tpot == (1.5 - 0.5) / 5  # of tokens, though there were but three events
    plain = record.to_dict()
    assert plain["ttft_ms"] == 500 and plain["itl_ms"] == [250, 750] and plain["tpot_ms"] == 200


def test_a_chat_begins_with_its_first_text_and_ends_with_its_last_event() -> None:
    record = read(
        (0.25, delta(role="assistant", content="")), (0.5, delta(content="a")),
        (0.625, delta()), (0.75, delta(content="b")), (1.0, delta("stop")), (1.25, usage(7, 4)),
        (1.5, DONE),
    )  # fmt: skip
    # The role is no token; a token whose text is held back is one; the end is none, but ends.
    assert (record.ttft, record.e2e, record.itl) == (0.5, 1.0, (0.125, 0.125))
    first_has_text = read((0.5, delta(role="assistant", content="a")), (1.0, delta("stop")))
    assert first_has_text.ttft == 0.5
    thoughts = read((0.5, delta(reasoning_content="hm")), (1.0, delta("stop", content="a")))
    assert (thoughts.ttft, thoughts.itl) == (0.5, (0.5,))


def test_an_answer_without_visible_text() -> None:
    record = read((0.5, text("", "stop")), (0.5, usage(7, 1)), (0.5, DONE))
    assert (record.ttft, record.e2e, record.itl, record.tpot) == (0.5, 0.5, (), None)


@pytest.mark.parametrize("count", [None, "4", -1])
def test_tokens_are_the_server_s_count_or_unknown(count: Any) -> None:
    record = read((0.5, text("a")), (1.0, text("b", "stop")), (1.0, usage(count, count)))
    assert record.prompt_tokens is None and record.output_tokens is None and record.tpot is None


def test_usage_in_every_event_counts_once() -> None:
    chunks = [
        (
            i / 2,
            event(
                choices=[{"text": "a", "finish_reason": None}],
                usage={"prompt_tokens": 7, "completion_tokens": i},
            ),
        )
        for i in (1, 2, 3)
    ]
    assert read(*chunks, (2.0, DONE)).output_tokens == 3


def test_the_same_text_has_the_same_hash_in_any_pieces() -> None:
    a = read((0.5, text("h\u00e9")), (1.0, text("llo", "stop")))
    b = read(
        (0.5, delta(content="h")), (0.75, delta(content="\u00e9ll")), (1.0, delta("x", content="o"))
    )
    c = read((0.5, text("h\u00e9llp", "stop")))
    assert a.text_sha256 == b.text_sha256 != c.text_sha256


def test_ends_that_count() -> None:
    assert read((1.0, text("a", "stop"))).error is None  # no end mark
    assert read((1.0, text("a")), (1.0, DONE)).error is None  # no reason
    late = read((1.0, text("a", "stop")), (1.0, DONE), (2.0, text("b") + b"data: {\n\n"))
    assert late.e2e == 1.0  # what follows the end mark is nobody's


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        ([], "ended without an answer"),
        ([DONE], "ended without an answer"),
        ([usage(1, 1), DONE], "ended without an answer"),
        ([text("a"), text("b")], "broke off after 2 token events"),
        ([text("a"), b'data: {"choi'], "not JSON: '{\"choi'"),
        ([b"data: [1]\n\n"], "not an object"),
        ([text("a"), event(error={"message": "engine\n died", "code": 500})], "error: engine died"),
        ([event(error="no")], "reports an error: no"),
    ],
)
def test_streams_that_failed(chunks: list[bytes], message: str) -> None:
    with pytest.raises(AnswerError, match=message):
        read(*((1.0, chunk) for chunk in chunks))


def test_messages_of_errors() -> None:
    assert error_message({"error": {"message": "too  long\n", "code": 400}}) == "too long"
    assert error_message({"object": "error", "message": "bad"}) == "bad"
    assert error_message({"detail": [{"loc": 1}]}) == '[{"loc": 1}]'
    assert len(error_message("x" * 1000)) == 200
