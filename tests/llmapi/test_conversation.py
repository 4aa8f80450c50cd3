"""Messages: what `LLM.chat`, and the server with it, refuses of them."""

from __future__ import annotations

from typing import Any

import pytest

from trtspec.errors import RequestError

from .test_chat import EACH, NEXT
from .test_chat_options import PLAIN, TOOLS, prompt

CALLS = EACH + "{{ m.role }}:{{ m.tool_calls or m.content }}" + NEXT


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ({"content": "a"}, r"\.role is missing; it is one of system, developer, user, assistant"),
        ({"rolle": "user", "content": "a"}, r" has the field `rolle`.*did you mean `role`"),
        ({"role": None, "content": "a"}, r"\.role is missing"),
        ({"role": 3, "content": "a"}, r"\.role is int 3"),
        ({"role": "", "content": "a"}, r"\.role is ''"),
        ({"role": "robot", "content": "a"}, r"\.role is 'robot'"),
        ({"role": "User", "content": "a"}, r"\.role is 'User'; did you mean `user`"),
        ({"role": "content", "content": "a"}, r"\.role is 'content'"),
        ({"role": "tool", "content": "a"}, r"\.role is 'tool', .* knows no tools"),
        ({"role": "user"}, r"\.content is missing"),
        ({"role": "assistant"}, r"\.content is missing"),
        ({"role": "user", "contents": "a"}, r" has the field `contents`.*did you mean `content`"),
        ({"role": "user", "content": "a", 3: 4}, r" has the field `3`"),
        ({"role": "user", "content": "a", "name": 3}, r"\.name is int 3"),
        ({"role": "user", "content": "a", "weight": 0.5}, r" has the field `weight`"),
        ({"role": "assistant", "content": "a", "tool_calls": [{}]}, r".*`tool_calls`.*never reads"),
    ],
)  # fmt: skip
def test_a_message_is_refused_with_its_place(message: Any, named: str) -> None:
    template = PLAIN.replace("m.content", "m['content']")
    with pytest.raises(RequestError, match=r"^messages\[1\]" + named):
        prompt(template, [{"role": "user", "content": "a"}, message])


def test_what_is_read_may_be_given() -> None:
    call = {"role": "assistant", "tool_calls": ["f"]}
    answer = {"role": "tool", "content": "b", "tool_call_id": "1"}
    assert prompt(CALLS, [call, answer]) == "assistant:['f']\ntool:b\n"
    with pytest.raises(RequestError, match=r"messages\[0\].tool_calls: only an assistant"):
        prompt(CALLS, [{**call, "role": "user"}])
    with pytest.raises(RequestError, match=r"messages\[0\].tool_calls is str 'f'"):
        prompt(CALLS, [{**call, "tool_calls": "f"}])
    with pytest.raises(RequestError, match=r"tool_calls\[0\].f is object"):
        prompt(CALLS, [{**call, "tool_calls": [{"f": object()}]}])
    assert prompt(TOOLS, [answer]) == "tool:b\n"
    named = PLAIN + "{% if messages[0].role in ['control'] %}{{ messages[0].weight }}{% endif %}"
    turn = {"role": "control", "content": "a", "weight": 2}
    assert prompt(named, [turn]) == "control:a\n2"


def test_empty_fields_of_clients_are_dropped() -> None:
    """What OpenAI's clients write out of an answer that is sent back."""
    turn = {"role": "assistant", "content": "a", "refusal": None, "annotations": []}
    empty = {"tool_calls": None, "function_call": None, "audio": None}
    assert prompt(PLAIN, [turn | empty]) == "assistant:a\n"


def test_an_answer_is_sent_back_as_clients_have_it() -> None:
    """OpenAI's null for an answer without text; parts as its newer API names them."""
    null = {"role": "assistant", "content": None}
    assert prompt(PLAIN, [null, {"role": "user", "content": "b"}]) == "assistant:\nuser:b\n"
    with pytest.raises(RequestError, match=r"messages\[0\]\.content is NoneType None"):
        prompt(PLAIN, [{"role": "user", "content": None}])
    said = [{"type": "output_text", "text": "a", "annotations": [], "logprobs": None}]
    heard = [{"type": "input_text", "text": "b"}, {"type": "text", "text": "c"}]
    turns = [{"role": "assistant", "content": said}, {"role": "user", "content": heard}]
    assert prompt(PLAIN, turns) == "assistant:a\nuser:b\nc\n"
    with pytest.raises(RequestError, match=r"content\[0\] is .*; a part is"):
        prompt(PLAIN, [{"role": "user", "content": [{**said[0], "annotations": ["x"]}]}])


def test_a_role_that_the_template_refuses() -> None:
    """Its own words, and the place."""
    raising = "{% if messages[0].role == 'robot' %}{{ raise_exception('none') }}{% endif %}" + PLAIN
    words = r"^messages\[0\].role is 'robot'; the chat template refused the conversation: none"
    with pytest.raises(RequestError, match=words):
        prompt(raising, [{"role": "robot", "content": "a"}])
