"""/v1/responses with the official client: text, tools, forms, streams."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from trtspec import SamplingParams
from trtspec.serve.answer import Answer

from ..e2e.helpers import TinyModels, ngram, open_llm
from .conftest import Server, run_server
from .talker import save_talker, template

TEXT = "So be it."
TOOL: Any = {
    "type": "function", "name": "feed", "strict": True, "description": None,
    "parameters": {
        "type": "object", "properties": {"kind": {"enum": ["cat", "rat"]}}, "required": ["kind"],
        "additionalProperties": False,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def talker(models: TinyModels) -> Path:
    return save_talker(models)


@pytest.fixture(scope="module")
def server(talker: Path) -> Iterator[Server]:
    with run_server(lambda: open_llm(talker, ngram(4), skip_tokenizer_init=False)) as running:
        yield running


def asked(**more: Any) -> Any:
    return {
        "model": "tiny",
        "input": "the cat?",
        "temperature": 1.0,
        "max_output_tokens": 60,
        **more,
    }


def test_the_answer_is_that_of_a_chat(server: Server) -> None:
    body = asked(instructions="be brief", extra_body={"seed": 3})
    answer = server.client().responses.create(**body)
    turns: Any = [
        {"role": "system", "content": "be brief"}, {"role": "user", "content": "the cat?"}
    ]  # fmt: skip
    params = SamplingParams(max_tokens=60, temperature=1.0, seed=3)
    expected = server.llm.chat(turns, params)
    assert answer.output_text == expected.outputs[0].text
    assert answer.usage.input_tokens == len(expected.prompt_token_ids)
    assert answer.usage.output_tokens == len(expected.outputs[0].token_ids)
    is_cut = expected.outputs[0].finish_reason == "length"
    assert answer.status == ("incomplete" if is_cut else "completed")
    assert answer.instructions == "be brief" and answer.store is False
    if is_cut:
        assert answer.incomplete_details.reason == "max_output_tokens"


def streamed(server: Server, **body: Any) -> tuple[Any, list[Any]]:
    with server.client().responses.stream(**body) as stream:
        events = list(stream)
        return stream.get_final_response(), events


def test_what_asks_for_nothing_is_taken(server: Server) -> None:
    """Clients send these to every server."""
    options: Any = {"stream_options": {"include_obfuscation": False}, "prompt_cache_key": "a"}
    body = asked(**options, store=False, truncation="disabled", stream=True)
    *_, last = server.client().responses.create(**body)
    assert last.response.status in ("completed", "incomplete")


def test_an_answer_that_is_cut_ends_in_an_incomplete_item(server: Server) -> None:
    """A client must not run half of a call."""
    body = asked(max_output_tokens=24, tools=[TOOL], tool_choice="required")
    whole = server.client().responses.create(**body)
    *_, done, last = server.client().responses.create(**body, stream=True)
    for each in (whole, last.response):
        assert each.status == "incomplete" and each.output[-1].status == "incomplete"
    assert done.type == "response.output_item.done" and done.item.status == "incomplete"


def test_figures_are_where_chats_have_them(server: Server) -> None:
    body = {"model": "tiny", "input": "a", "max_output_tokens": 4}
    body["return_spec_tokens_details"] = True
    whole = server.post("/v1/responses", json=body).json()
    assert whole["metrics"]["speculative_decoding"]
    *_, last = server.post("/v1/responses", json={**body, "stream": True}).text.strip().split("\n")
    assert json.loads(last.removeprefix("data: "))["response"]["metrics"]["speculative_decoding"]


def test_a_stream_that_fails_ends_in_an_error_event(server: Server, monkeypatch: Any) -> None:
    ends = Answer._send_end

    async def fails(*given: Any) -> None:
        monkeypatch.setattr(Answer, "_send_end", ends)
        raise KeyError

    monkeypatch.setattr(Answer, "_send_end", fails)
    body = {"model": "tiny", "input": "a", "stream": True, "max_output_tokens": 4}
    answer = server.post("/v1/responses", json=body)
    *_, kind, data = answer.text.strip().split("\n")
    event = json.loads(data.removeprefix("data: "))
    assert kind == "event: error" and event["type"] == "error"
    assert event["code"] == "internal_error"


def items(answer: Any) -> list[Any]:
    """What was said, less ids."""
    found = []
    for item in answer.output:
        text = item.content[0].text if item.type != "function_call" else item.arguments
        found.append((item.type, getattr(item, "name", None), text, item.status))
    return found


def test_streams_say_what_whole_answers_say(server: Server, monkeypatch: Any) -> None:
    monkeypatch.setattr(
        server.llm.tokenizer, "chat_template", template("hermes", True, "assistant:<think>")
    )
    body = asked(max_output_tokens=300, tools=[TOOL], tool_choice="required")
    body["extra_body"] = {"seed": 4, "thinking_budget": 7}
    whole = server.client().responses.create(**body)
    answer, events = streamed(server, **body)
    assert items(answer) == items(whole)
    kinds = [kind for kind, *_ in items(whole)]
    assert kinds[0] == "reasoning" and set(kinds[1:]) == {"function_call"}
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type == f"response.{whole.status}"
    for index, (_, _, text, _) in enumerate(items(whole)):
        mine = [e for e in events if getattr(e, "output_index", None) == index]
        assert mine[0].type == "response.output_item.added"
        assert mine[-1].type == "response.output_item.done"
        assert "".join(e.delta for e in mine if e.type.endswith(".delta")) == text


def test_text_and_forms(server: Server) -> None:
    class Pet(BaseModel):
        kind: Literal["cat", "rat"]

    answer = server.client().responses.parse(**asked(text_format=Pet, max_output_tokens=300))
    assert answer.output_parsed.kind in ("cat", "rat")
    final, _ = streamed(server, **asked(text_format=Pet, max_output_tokens=300))
    assert final.output_parsed is not None


def test_what_was_said_and_called_goes_back(server: Server, monkeypatch: Any) -> None:
    """Items of an answer are input again, as clients have them."""
    client = server.client()
    named: Any = {"type": "function", "name": "feed"}
    first = client.responses.create(**asked(tools=[TOOL], tool_choice=named, max_output_tokens=300))
    (call,) = first.output
    seen = []
    chat = server.llm.prompts.chat

    def watched(turns: Any, options: Any) -> Any:
        seen.append(turns)
        return chat(turns, options)

    monkeypatch.setattr(server.llm.prompts, "chat", watched)
    reasoning = {"id": "r", "type": "reasoning", "summary": [{"type": "summary_text", "text": "h"}],
                 "content": [{"type": "reasoning_text", "text": "hm"}]}  # fmt: skip
    said = {"type": "function_call_output", "call_id": call.call_id, "output": "fed"}
    client.responses.create(
        **asked(input=[{"role": "user", "content": [{"type": "input_text", "text": "a"}]},
                       reasoning, call.model_dump(exclude_none=True), said])
    )  # fmt: skip
    user, assistant, tool = seen[0]
    assert user["content"] == [{"type": "input_text", "text": "a"}]
    assert assistant["reasoning_content"] == "hm"
    assert assistant["tool_calls"][0]["function"]["arguments"] == json.loads(call.arguments)
    assert tool == {"role": "tool", "content": "fed", "tool_call_id": call.call_id}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"previous_response_id": "resp_1"}, "nothing is stored"),
        ({"store": True}, "nothing is stored"),
        ({"tools": [{"type": "web_search"}]}, "function"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id: it is missing"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "function_call"),
        ({"input": [{"role": "user", "content": "a", "output": "b"}]}, "unknown field `output`"),
        ({"input": [{"type": "reasoning", "content": [{"type": "a", "text": {}}]}]}, "reasoning"),
        ({"text": {"format": {"type": "text", "schema": {}}}}, "no other type has one"),
        ({"prompt_cache_key": 5}, "must be text"),
        ({"input": []}, "empty"),
        ({"temperature": -1}, "at least 0"),
        ({"tool_choice": "required"}, "needs `tools`"),
        ({"n": 2}, "unknown field"),
    ],
)
def test_refusals(server: Server, fields: Any, words: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        server.client().responses.create(model="tiny", **{"input": "a"}, extra_body=fields)
    assert words in str(refused.value)
