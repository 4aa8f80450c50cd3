"""Tool calls and reasoning through a server, with the official client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import jsonschema_rs
import openai
import pytest
from pydantic import BaseModel

from trtspec.errors import ConfigError
from trtspec.serve.settings import ServeSettings
from trtspec.serve.tools.registry import TOOL_PARSERS

from ..e2e.helpers import TinyModels, assert_no_leak, ngram, open_llm
from .conftest import Server, run_server
from .recorded import RECORDED, TOOLS, Recorded
from .talker import save_talker, template

USER: Any = [{"role": "user", "content": "the cat?"}]
PET = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["cat", "rät"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 9},
        "tame": {"type": "boolean"},
    },
    "required": ["kind", "tame"],
    "additionalProperties": False,
}
BOX = {"type": "object", "properties": {}, "additionalProperties": False}


def tool(name: str, schema: Any, **more: Any) -> Any:
    return {"type": "function", "function": {"name": name, "parameters": schema, **more}}


PETS = [tool("feed", PET), tool("open.box", BOX)]


@pytest.fixture(scope="module")
def talker(models: TinyModels) -> Path:
    return save_talker(models)


@pytest.fixture(scope="module")
def server(talker: Path) -> Iterator[Server]:
    with run_server(lambda: open_llm(talker, ngram(4), skip_tokenizer_init=False)) as running:
        yield running
        assert_no_leak(running.llm)


@pytest.fixture
def speak(server: Server, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the model be one of another family."""

    def change(parser: str, **options: Any) -> None:
        monkeypatch.setattr(server.llm.tokenizer, "chat_template", template(parser, **options))

    return change


def streamed(server: Server, **asked: Any) -> Any:
    """The answer that the client's own reader makes of a stream, and its chunks."""
    with server.client().chat.completions.stream(model="tiny", messages=USER, **asked) as stream:
        chunks = [event.chunk for event in stream if event.type == "chunk"]
        return stream.get_final_completion().choices[0], chunks


def called(message: Any) -> list[tuple[str, str]]:
    return [(c.function.name, c.function.arguments) for c in message.tool_calls or ()]


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: f"{case.parser}: {case.text[:24]!r}")
def test_recorded_answers(server: Server, speak: Any, case: Recorded) -> None:
    """Whole and streamed, several tokens a chunk."""
    speak(case.parser)
    tools = [tool(name, schema) for name, schema in TOOLS.items()]
    asked: Any = {"tools": tools, "extra_body": {"guided_choice": [case.text]}}
    choice = (
        server.client().chat.completions.create(model="tiny", messages=USER, **asked).choices[0]
    )
    message = choice.message
    assert (message.content or "") == case.content
    assert (message.model_extra or {}).get("reasoning_content", "") == case.reasoning
    for (name, text), (its_name, value) in zip(called(message), case.calls, strict=True):
        assert name == its_name and (text if isinstance(value, str) else json.loads(text)) == value
    assert choice.finish_reason == ("tool_calls" if case.calls else "stop")
    again, _ = streamed(server, **asked)
    assert (again.message.content or "") == case.content
    assert called(again.message) == called(message)
    assert again.finish_reason == choice.finish_reason
    ids = [call.id for call in again.message.tool_calls or ()]
    assert len(set(ids)) == len(ids) and all(len(each) == 9 for each in ids)


def test_answers_without_tools_are_left_as_they_are(server: Server, speak: Any) -> None:
    speak("hermes")
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    for more in ({}, {"tools": PETS, "tool_choice": "none"}):
        answer = server.client().chat.completions.create(
            model="tiny", messages=USER, extra_body={"guided_choice": [text]}, **more
        )
        assert answer.choices[0].message.content == text
        assert answer.choices[0].message.tool_calls is None


def test_one_call_where_several_are_not_wanted(server: Server, speak: Any) -> None:
    speak("hermes")
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>' * 2
    asked: Any = {"tools": PETS, "extra_body": {"guided_choice": [text]}}
    for many in (True, False):
        choice, _ = streamed(server, parallel_tool_calls=many, **asked)
        assert len(choice.message.tool_calls) == 1 + many


def valid(message: Any, ended: bool = True) -> list[str]:
    """The names of the tools that are called, each by its schema; if the answer did not end, the
    last may break off."""
    calls = called(message)
    for name, text in calls if ended else calls[:-1]:
        jsonschema_rs.validate(PET if name == "feed" else BOX, json.loads(text))
    return [name for name, _ in calls]


@pytest.mark.parametrize("parser", [each.name for each in TOOL_PARSERS])
def test_required_and_named_calls(server: Server, speak: Any, parser: str) -> None:
    """The model is random: its calls are valid by the grammar alone."""
    speak(parser, thinks=parser == "hermes")
    asked: Any = {"model": "tiny", "messages": USER, "tools": PETS, "temperature": 1.2}
    create = server.client().chat.completions.create
    names = []
    for seed in range(3):
        one = create(
            **asked, tool_choice="required", seed=seed, parallel_tool_calls=False, max_tokens=300
        ).choices[0]
        assert not one.message.content
        if one.finish_reason != "length":
            names += valid(one.message)
            assert one.finish_reason == "tool_calls" and len(one.message.tool_calls) == 1
        many = create(**asked, tool_choice="required", seed=seed, max_tokens=200).choices[0]
        ended = many.finish_reason != "length"  # else all of it may be reasoning
        assert valid(many.message, ended) or not ended
    assert names
    named: Any = {"type": "function", "function": {"name": "feed"}}
    assert valid(create(**asked, tool_choice=named, seed=0).choices[0].message) == ["feed"]


class Feed(BaseModel):
    kind: Literal["cat", "rat"]
    tame: bool


@pytest.mark.parametrize("parser", [each.name for each in TOOL_PARSERS])
def test_strict_tools_are_kept_to_where_none_is_required(
    server: Server, speak: Any, parser: str
) -> None:
    speak(parser)
    (found,) = (each for each in TOOL_PARSERS if each.name == parser)
    (begin,) = found.optional({"feed": PET}).get("triggers", ["{"])
    ids = server.llm.tokenizer(begin, add_special_tokens=False)["input_ids"]
    names = []
    for seed in range(2):
        choice = server.client().chat.completions.create(
            model="tiny", messages=USER, max_tokens=200, temperature=0.5, seed=seed,
            tools=[tool("feed", PET, strict=True)], logit_bias={str(token): 30 for token in ids},
        ).choices[0]  # fmt: skip
        names += valid(choice.message, choice.finish_reason != "length")
    assert set(names) == {"feed"}


def test_parse(server: Server, speak: Any) -> None:
    """Of pydantic's classes: tools and a form of the content, either of which may come."""
    speak("hermes")

    class Pet(BaseModel):
        tame: bool

    chat = server.client().chat.completions
    found: set[Any] = set()
    for seed in range(12):
        if len(found) == 2:
            break
        answer = chat.parse(
            model="tiny", messages=USER, tools=[openai.pydantic_function_tool(Feed)],
            response_format=Pet, seed=seed, temperature=1.5, parallel_tool_calls=False,
        )  # fmt: skip
        message = answer.choices[0].message
        if message.tool_calls:
            found |= {type(c.function.parsed_arguments) for c in message.tool_calls}
        else:
            found.add(type(message.parsed))
    assert found == {Pet, Feed}


@pytest.mark.parametrize("stream", [True, False])
def test_reasoning(server: Server, speak: Any, stream: bool) -> None:
    """Where the prompt opens it, a budget ends it, and a form begins behind it."""
    speak("hermes", thinks=True, tail="assistant:<think>\n")
    asked: Any = {"model": "tiny", "messages": USER, "temperature": 1.0, "seed": 3}
    asked["extra_body"] = {"thinking_budget": 6, "guided_choice": ["\n\nso be it"]}
    chat = server.client().chat.completions
    if stream:
        deltas = [c.choices[0].delta for c in chat.create(stream=True, **asked) if c.choices]
        thought = "".join((d.model_extra or {}).get("reasoning_content") or "" for d in deltas)
        content = "".join(d.content or "" for d in deltas)
    else:
        message = chat.create(**asked).choices[0].message
        thought, content = message.model_extra["reasoning_content"], message.content
        assert message.model_extra["reasoning"] == thought
        assert chat.create(**asked).choices[0].message.model_extra["reasoning"] == thought
        hidden = {**asked, "extra_body": {**asked["extra_body"], "include_reasoning": False}}
        without = chat.create(**hidden).choices[0].message
        assert "reasoning" not in without.model_extra and without.content == content
    assert content == "so be it" and thought and "think>" not in thought


def test_a_call_behind_reasoning(server: Server, speak: Any) -> None:
    speak("qwen3_coder", thinks=True, tail="assistant:<think>\n")
    asked: Any = {"tools": PETS, "tool_choice": "required", "temperature": 1.0, "seed": 2}
    choice, _ = streamed(server, **asked, extra_body={"thinking_budget": 5})
    assert called(choice.message) and choice.finish_reason == "tool_calls"


def test_calls_and_answers_go_back_into_the_prompt(server: Server, speak: Any) -> None:
    """Arguments are values to templates, and texts to those that want them so."""
    speak("hermes")
    seen: list[Any] = []
    chat = server.llm.prompts.chat
    call = {
        "id": "abcdefghi", "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Oslø"}'},
    }  # fmt: skip
    turns: Any = [
        *USER,
        {"role": "assistant", "tool_calls": [call], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "abcdefghi", "content": "rain"},
    ]

    def watched(*args: Any) -> Any:
        seen.append(chat(*args))
        return seen[-1]

    patch = pytest.MonkeyPatch()
    with patch.context() as change:
        change.setattr(server.llm.prompts, "chat", watched)
        server.client().chat.completions.create(
            model="tiny", messages=turns, tools=PETS, max_tokens=1
        )
        speak("deepseek_v3")
        server.client().chat.completions.create(model="tiny", messages=turns, max_tokens=1)
    counted = server.post("/tokenize", json={"messages": turns}).json()
    assert counted["tokens"] == seen[1]["prompt_token_ids"]
    texts = [server.llm.tokenizer.decode(each["prompt_token_ids"]) for each in seen]
    assert "assistant:weather={'city': 'Oslø'}hm\n" in texts[0]
    assert "tool:rainabcdefghi" in texts[0] and "feed,open.box," in texts[0]
    assert 'weather={"city": "Oslø"}hm' in texts[1] and "feed" not in texts[1]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tools": [tool("a b", {})]}, "tools[0].function.name"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0].type"),
        ({"tools": PETS, "tool_choice": "always"}, "tool_choice"),
        ({"tools": [*PETS, PETS[0]]}, "two have one name"),
        ({"tool_choice": "required"}, "needs `tools`"),
        (
            {"tools": PETS, "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "names 'g'",
        ),
        ({"tools": PETS * 100}, "at most 128"),
        ({"tools": PETS, "tool_choice": "required", "guided_regex": "a"}, "another form"),
        ({"tools": [tool("f", {"a": "x" * 40_000})]}, "tools has"),
        ({"tools": [tool("f", {"type": "objekt"})], "tool_choice": "required"}, "is refused"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "f", "arguments": "[1]"}}]}]},
            "must be a JSON object",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [
                {"id": "a", "type": "function",
                 "function": {"name": "f", "arguments": "{" * 5000}}]}]},
            "no JSON",
        ),
        ({"messages": [{"role": "assistant"}]}, "content is missing"),
        ({"functions": [{"name": "f"}]}, "write them as `tools`"),
    ],
)  # fmt: skip
def test_refusals(server: Server, speak: Any, fields: dict[str, Any], words: str) -> None:
    speak("hermes")
    answer = server.post("/v1/chat/completions", json={"messages": USER, **fields})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert words in error["message"] or words in str(error["param"])


@pytest.mark.parametrize("parser", ["qwen3_coder", "glm45"])
@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"properties": {"a": True}}, "must be an object"),
        ({"properties": {"a": {}}, "required": None}, "must list"),
        ({"properties": {"a": {}}, "required": "a"}, "must list"),
        ({"properties": {"a<b>\n": {"type": "string"}}}, "cannot write"),
    ],
)
def test_schemas_that_cannot_be_written_between_tags(
    server: Server, speak: Any, parser: str, schema: Any, words: str
) -> None:
    speak(parser)
    body = {"messages": USER, "tools": [tool("f", schema)], "tool_choice": "required"}
    answer = server.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400 and words in answer.json()["error"]["message"]


def test_a_template_that_writes_calls_in_no_known_way(server: Server, talker: Path) -> None:
    server.llm.tokenizer.chat_template = "{% if tools %}{{ tools }}{% endif %}{{ messages }}"
    answer = server.post("/v1/chat/completions", json={"messages": USER, "tools": PETS})
    server.llm.tokenizer.chat_template = template("hermes")
    assert answer.status_code == 400 and "--tool-call-parser" in answer.json()["error"]["message"]


def test_parsers_by_name(talker: Path) -> None:
    """None: texts stay as they are; a name: whatever the template shows."""
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    body = {"messages": USER, "tools": PETS, "guided_choice": [text]}

    def open_talker() -> Any:
        return open_llm(talker, skip_tokenizer_init=False)

    with run_server(open_talker, tool_call_parser="none") as server:
        answer = server.post("/v1/chat/completions", json=body).json()
        assert answer["choices"][0]["message"]["content"] == text
        required = {"messages": USER, "tools": PETS, "tool_choice": "required"}
        refused = server.post("/v1/chat/completions", json=required)
        assert refused.status_code == 400 and "the server reads none" in refused.text
    with run_server(open_talker, tool_call_parser="hermes") as server:
        server.llm.tokenizer.chat_template = "{{ tools }}{{ messages }}"
        answer = server.post("/v1/chat/completions", json=body).json()
        assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "f"
    for option in ("tool_call_parser", "reasoning_parser"):
        with pytest.raises(ConfigError, match=f"{option}='nobody' is not known.* there are auto"):
            ServeSettings(model_names=("tiny",), **{option: "nobody"})
