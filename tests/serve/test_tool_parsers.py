"""Recorded answers, read whole and cut at every place."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtspec.serve.tools.message import Message
from trtspec.serve.tools.parser import ToolParser
from trtspec.serve.tools.reasoning import REASONING
from trtspec.serve.tools.registry import TOOL_PARSERS, tool_parser

from .recorded import BOTH, RECORDED, TOOLS, Recorded


def grows(before: Message, now: Message) -> bool:
    """Whether a message only adds to another."""
    calls = now.calls[: len(before.calls)]
    return (
        now.reasoning.startswith(before.reasoning)
        and now.content.startswith(before.content)
        and [call.name for call in calls] == [call.name for call in before.calls]
        and all(
            a.arguments.startswith(b.arguments) for a, b in zip(calls, before.calls, strict=True)
        )
        and all(a == b for a, b in zip(calls[:-1], before.calls[:-1], strict=True))
    )


def arguments(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: f"{case.parser}: {case.text[:24]!r}")
def test_a_recorded_answer_cut_at_every_place(case: Recorded) -> None:
    parser = tool_parser(case.parser, "")
    assert parser is not None
    whole = parser.read(case.text, True, TOOLS)
    assert (whole.reasoning, whole.content) == (case.reasoning, case.content)
    assert [(call.name, arguments(call.arguments)) for call in whole.calls] == list(case.calls)
    read = [parser.read(case.text[:end], False, TOOLS) for end in range(len(case.text) + 1)]
    for end, now in enumerate(read):
        assert grows(read[max(end - 1, 0)], now), case.text[:end]
        assert grows(now, parser.read(case.text[:end], True, TOOLS)), case.text[:end]
    assert grows(read[-1], whole)


PIECES = [
    *(mark for parser in TOOL_PARSERS for mark in parser.marks),
    *(
        '{"name": "now", "arguments": ',
        '{"name":"now","parameters":',
        "{}",
        '{"city": "a',
        '"}',
        "}",
    ),
    *("weather", "now", "function", "\n", " ", "[", "]", ",", ";", '"', "\\", "\\x", "<", "word"),
    *(
        "<parameter=city>",
        "```json\n",
        "analysis",
        "final",
        "commentary to=functions.now",
        "3",
        ">",
    ),
]


@pytest.mark.parametrize("parser", TOOL_PARSERS, ids=lambda parser: parser.name)
@settings(max_examples=60, deadline=None)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=14))
def test_any_text_is_read_alike_wherever_it_is_cut(parser: ToolParser, pieces: list[str]) -> None:
    text, before = "".join(pieces), Message()
    for end in range(len(text) + 1):
        now = parser.read(text[:end], False, TOOLS)
        assert grows(before, now), text[:end]
        assert grows(now, parser.read(text[:end], True, TOOLS)), text[:end]
        before = now


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "glm45", "mistral", "deepseek_v31"])
def test_arguments_are_sent_while_they_come(name: str) -> None:
    """A text that comes letter by letter is not held back until it has ended."""
    parser = tool_parser(name, "")
    assert parser is not None
    case = next(c for c in RECORDED if c.parser == name and c.calls == (*BOTH[:1], *c.calls[1:]))
    sent = {parser.read(case.text[:end], False, TOOLS).calls for end in range(len(case.text))}
    assert len(sent) > 15


def test_each_parser_has_recorded_answers_and_its_names_are_its_own() -> None:
    names = [name for each in TOOL_PARSERS for name in (each.name, *each.others)]
    assert len(set(names)) == len(names)
    assert {case.parser for case in RECORDED} >= {p.name for p in TOOL_PARSERS} - {"mistral_list"}


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("parser", REASONING, ids=lambda parser: parser.name)
def test_reasoning_cut_at_every_place(parser: Any, is_open: bool) -> None:
    text = f"\nLet me < think\nof it. \n{parser.end}\n\nThe {parser.start} answer.\n"
    if not is_open:
        text = f" {parser.start}{text}"
    before = ("", "", False)
    for end in range(len(text) + 1):
        now = parser.split(text[:end], is_open, False)
        assert now[0].startswith(before[0]) and now[1].startswith(before[1]) and now[2] >= before[2]
        whole = parser.split(text[:end], is_open, True)
        assert whole[0].startswith(now[0]) and (whole[1].startswith(now[1]) or not now[2])
        before = now
    assert before == ("Let me < think\nof it.", f"The {parser.start} answer.\n", True)
    assert parser.split("plain <", False, False) == ("", "plain <", True)
    assert parser.split(parser.start[:3], False, True) == ("", parser.start[:3], True)
