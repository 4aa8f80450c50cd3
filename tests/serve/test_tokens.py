"""/tokenize and /detokenize, and what has no route."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from .conftest import Serve, Server

TEXT = "the hat, é€ <|end|>"
TURNS: Any = [{"role": "user", "content": "the cat?"}]


def test_a_text(server: Server) -> None:
    answer = server.post("/tokenize", json={"prompt": TEXT, "return_token_strs": True}).json()
    assert answer["tokens"] == server.llm.tokenizer(TEXT)["input_ids"]
    assert answer["count"] == len(answer["tokens"]) and answer["max_model_len"] == 256
    assert answer["token_strs"][-1] == "<|end|>"
    back = server.post("/detokenize", json={"tokens": answer["tokens"]})
    assert back.json() == {"prompt": TEXT}
    assert server.post("/tokenize", json={"prompt": ""}).json()["tokens"] == []


def test_a_conversation_is_tokenised_as_it_is_answered(server: Server) -> None:
    body = {"messages": TURNS, "add_generation_prompt": False}
    answer = server.post("/tokenize", json=body).json()
    asked = server.client().chat.completions.create(
        model="tiny", messages=TURNS, max_tokens=1, extra_body={"add_generation_prompt": False}
    )
    assert answer["count"] == asked.usage.prompt_tokens


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/tokenize", {}, "one of `prompt` and `messages`"),
        ("/tokenize", {"prompt": "a", "messages": TURNS}, "one of `prompt` and `messages`"),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": True}, "needs `messages`"),
        ("/tokenize", {"messages": TURNS, "add_special_tokens": True}, "templates write their own"),
        ("/tokenize", {"prompt": "\ud800"}, "half of a character"),
        ("/tokenize", {"prompt": "a" * 100_000}, "256 tokens"),
        ("/tokenize", {"prompt": "a", "chat_template": "{{ x }}"}, "`chat_template` is refused"),
        ("/tokenize", {"messages": [{"role": "robot", "content": "a"}]}, "no robots"),
        ("/detokenize", {"tokens": [300]}, "0 to 299"),
        ("/detokenize", {"tokens": []}, "empty"),
        ("/detokenize", {"tokens": ["a"]}, "whole number"),
    ],
)
def test_refusals(server: Server, path: str, body: Any, words: str) -> None:
    content = json.dumps(body)
    answer = server.post(path, content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400 and words in answer.json()["error"]["message"]


def test_they_ask_for_the_key(serve: Serve) -> None:
    with serve(api_keys=("one",)) as server:
        for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})):
            assert server.post(path, json=body).status_code == 401
            key = {"Authorization": "Bearer one"}
            assert server.post(path, json=body, headers=key).status_code == 200


def test_embeddings_are_refused_by_name(server: Server) -> None:
    with pytest.raises(openai.NotFoundError, match="only text is generated") as refused:
        server.client().embeddings.create(model="tiny", input="a")
    assert refused.value.code == "not_offered"
