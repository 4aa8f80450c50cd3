"""Forms and budgets that a request of the server asks for."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from .conftest import Serve

SCHEMA = {"enum": ["cat", 7, ["a"]]}


def content(server: Any, **fields: Any) -> Any:
    body = {"prompt": "the cat", "max_tokens": 60, "temperature": 1.0, "seed": 2, **fields}
    return server.post(json=body)


@pytest.mark.parametrize(
    ("fields", "holds"),
    [
        ({"guided_regex": "[a-c]{2}"}, lambda text: re.fullmatch("[a-c]{2}", text)),
        ({"guided_choice": ["ja", "né"]}, lambda text: text in ("ja", "né")),
        ({"guided_json": SCHEMA}, lambda text: json.loads(text) in SCHEMA["enum"]),
        ({"guided_json": json.dumps(SCHEMA)}, lambda text: json.loads(text) in SCHEMA["enum"]),
        ({"guided_grammar": 'root ::= "a" | "b" root'}, lambda text: re.fullmatch("b*a", text)),
        ({"structured_outputs": {"regex": "x[0-3]"}}, lambda text: re.fullmatch("x[0-3]", text)),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
            lambda text: json.loads(text) in SCHEMA["enum"],
        ),
        ({"response_format": {"type": "text"}, "max_tokens": 3}, lambda text: True),
    ],
)
def test_fields(serve: Serve, fields: dict[str, Any], holds: Any) -> None:
    with serve() as server:
        answer = content(server, **fields)
        assert answer.status_code == 200, answer.text
        assert holds(answer.json()["choices"][0]["text"])


def test_openais_client(serve: Serve) -> None:
    schema = {
        "type": "object",
        "properties": {"pet": {"enum": ["cat", "rat"]}},
        "required": ["pet"],
        "additionalProperties": False,
    }
    named = {"name": "pet", "strict": True, "schema": schema}
    with serve() as server:
        asked: Any = {
            "model": "tiny",
            "messages": [{"role": "user", "content": "which pet?"}],
            "response_format": {"type": "json_schema", "json_schema": named},
            "seed": 3,
        }
        whole = server.client().chat.completions.create(**asked).choices[0].message.content
        chunks = server.client().chat.completions.create(**asked, stream=True)
        streamed = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert json.loads(whole)["pet"] in ("cat", "rat") and streamed == whole


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"guided_regex": "(a"}, "grammar is refused"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "exactly one of"),
        ({"guided_json": {"type": "objekt"}}, "grammar is refused"),
        ({"structured_outputs": {"regexp": "a"}}, "did you mean `regex`"),
        ({"structured_outputs": {}}, "exactly one of"),  # as vLLM does
        (
            {
                "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
                "structured_outputs": {"json": {"type": "null"}},
            },
            "give one of them",
        ),
        ({"guided_json": '{"const": "\\ud800"}'}, "grammar is refused"),
        ({"response_format": {"type": "json_schema"}}, "needs `json_schema`"),
        ({"response_format": {"type": "yaml"}}, "json_object"),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos"),
        ({"thinking_budget": 3}, "<think>"),
        ({"thinking_budget": -1}, "at least 0"),
    ],
)
def test_what_cannot_be_kept_is_refused(serve: Serve, fields: dict[str, Any], words: str) -> None:
    with serve() as server:
        answer = content(server, **fields)
    assert answer.status_code == 400, answer.text
    assert words in answer.json()["error"]["message"]
