"""What is not offered or not valid is refused by name with 400, in OpenAI's error form."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .conftest import Serve, Server

JSON = {"Content-Type": "application/json"}
USER = [{"role": "user", "content": "a"}]


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    (error,) = response.json().values()
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("echo", "yes"), ("best_of", 3), ("suffix", "end"), ("use_beam_search", True),
        ("prompt_logprobs", 1), ("guided_json", 3), ("response_format", {"type": "yaml"}),
        ("truncate_prompt_tokens", 4), ("prompt_embeds", "AAAA"), ("logprobs", 21),
        ("stream_options", {"include_usage": True}), ("temprature", 0.5), ("max_tokens", 0),
        ("max_tokens", "5"), ("n", 0), ("n", 10_000), ("temperature", -1), ("seed", 2**70),
        ("stop", [""]), ("stop", ["a"] * 17), ("stop", "a" * 257), ("stop", "\ud800"),
        ("logit_bias", {"x": 1}), ("logit_bias", {"100000": 1}), ("top_k", -5),
        ("stop_token_ids", [99999]), ("presence_penalty", 3), ("stream", "yes"),
    ],
)  # fmt: skip
def test_completion_fields(server: Server, field: str, value: Any) -> None:
    body = {"prompt": "a", "temperature": 0, "max_tokens": 1, field: value}
    response = server.post(content=json.dumps(body), headers=JSON)
    assert field in error_of(response, 400)["message"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"prompt": ["a"] * 1025}, "prompt: it has 1025 items; at most 1024 are taken"),
        ({"prompt": [[1]] * 1025}, "prompt: it has 1025 items; at most 1024 are taken"),
        ({"prompt": ""}, "prompt: it is empty; give at least 1 of its characters"),
        ({"prompt": []}, "prompt: it is empty; give at least 1 of its items"),
        ({"prompt": ["a", ""]}, "prompt[1]: it is empty"),
        ({"prompt": [[1], []]}, "prompt[1]: it is empty"),
        ({"prompt": [1, -1]}, "prompt[1]: it is -1, but must be at least 0"),
        ({"prompt": [1, "a"]}, "prompt[1]: it must be a whole number, got 'a'"),
        ({"stop": ["a"] * 17}, "stop: it has 17 items; at most 16 are taken"),
        ({"stop": "a" * 257}, "stop: it has 257 characters; at most 256 are taken"),
        ({"stop": ["a", ""]}, "stop[1]: it is empty"),
        ({"n": 0}, "n: it is 0, but must be at least 1"),
        ({"temperature": "hot"}, "temperature: it must be a number, got 'hot'"),
    ],
)
def test_a_refusal_names_the_limit(server: Server, body: dict[str, Any], words: str) -> None:
    error = error_of(server.post(json={"prompt": "a", "max_tokens": 1, **body}), 400)
    assert error["message"].startswith(words)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}]), ("functions", [{}]),
        ("tool_choice", "required"), ("response_format", {"type": "json_schema"}),
        ("audio", {}), ("modalities", ["text", "audio"]), ("prediction", {"type": "content"}),
        ("web_search_options", {}), ("chat_template", "{{ 1 }}"), ("store", True),
        ("metadata", {"a": "b"}), ("service_tier", "flex"), ("top_logprobs", 3), ("echo", True),
        ("max_completion_tokens", 7), ("messages", []), ("messages", None), ("documents", [{}]),
    ],
)  # fmt: skip
def test_chat_fields(server: Server, field: str, value: Any) -> None:
    body = {"messages": USER, "max_tokens": 1, field: value}
    error = error_of(server.post("/v1/chat/completions", json=body), 400)
    assert field in error["message"]


@pytest.mark.parametrize(
    ("message", "place"),
    [
        ({"role": "robot", "content": "a"}, "messages[0].role"),
        ({"role": "pirate", "content": "a"}, "messages[0].role"),
        ({"role": "", "content": "a"}, "messages[0].role"),
        ({"content": "a"}, "messages[0].role"),
        ({"role": "tool", "content": "a", "tool_call_id": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": None}, "messages[0].content"),
        (
            {"role": "assistant", "content": "a", "tool_calls": [{}]},
            "messages[0].tool_calls[0].function",
        ),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///x"}}]},
            "messages[0].content[0]",
        ),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": "\ud83d"}, None),
        ({"role": "\ud83d", "content": "a"}, "messages[0].role"),
        ({"role": "user", "content": "a", "\ud83d": 1}, "messages[0]"),
    ],
)
def test_messages(server: Server, message: Any, place: str | None) -> None:
    body = json.dumps({"messages": [message]})
    error = error_of(server.post("/v1/chat/completions", content=body, headers=JSON), 400)
    assert error["param"] == place


def test_neutral_values_are_accepted(server: Server) -> None:
    """Clients write out defaults; what asks for nothing is no error."""
    neutral = {
        "best_of": 1, "echo": False, "suffix": None, "user": "me", "use_beam_search": False,
        "stop": None, "logprobs": None, "logit_bias": {}, "top_p": 1, "stream": False, "n": None,
    }  # fmt: skip
    assert server.post(json={"prompt": "a", "max_tokens": 1, **neutral}).status_code == 200
    neutral = {
        "tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "store": False,
        "metadata": {}, "parallel_tool_calls": True, "service_tier": "auto", "user": "me",
    }  # fmt: skip
    body = {"messages": USER, "max_tokens": 1, **neutral}
    assert server.post("/v1/chat/completions", json=body).status_code == 200


@pytest.mark.parametrize(
    "prompt",
    ["", [], [[]], [1, -1], [1, 300], [1, "a"], [True], None, 5, {"prompt": "a"}, [None] * 5000,
     "a" * 300, [1] * 256, ["a", ""], "half \ud800"],
)  # fmt: skip
def test_prompts(server: Server, prompt: Any) -> None:
    """Bad ones of all kinds; one bad prompt refuses its whole request."""
    body = json.dumps({"prompt": prompt, "max_tokens": 1})
    error = error_of(server.post(content=body, headers=JSON), 400)
    assert error["type"] == "invalid_request_error" and len(error["message"]) < 1000


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"5", b'{"prompt": "a"', b"\xff\xfe", b"[" * 100_000, b'{"a": 1e999}',
     b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}", b'{"prompt": "a", "top_p": NaN}',
     b'{"prompt": "a", "\\ud800": 1}'],
)  # fmt: skip
def test_bodies(server: Server, content: bytes) -> None:
    error_of(server.post(content=content, headers=JSON), 400)


def test_a_text_too_long_is_refused_before_it_is_tokenised(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    monkeypatch.setattr(server.llm.prompts, "read", calls.append)
    monkeypatch.setattr(server.llm.prompts, "chat", calls.append)
    long = "the cat " * 100_000
    error = error_of(server.post(json={"prompt": [long]}), 400)
    assert error["code"] == "context_length_exceeded" and "256 tokens" in error["message"]
    body = {"messages": [{"role": "user", "content": long}]}
    error_of(server.post("/v1/chat/completions", json=body), 400)
    assert not calls


def test_a_prompt_of_too_many_tokens(server: Server) -> None:
    """One whose characters might have fitted has the same code, for clients that then cut it."""
    long = "xyz " * 100
    error = error_of(server.post(json={"prompt": long}), 400)
    assert error["code"] == "context_length_exceeded" and "max_seq_len=256" in error["message"]
    body = {"messages": [{"role": "user", "content": long}]}
    error = error_of(server.post("/v1/chat/completions", json=body), 400)
    assert error["code"] == "context_length_exceeded"
    error = error_of(server.post(json={"prompt": "a", "logit_bias": {"99999": 1}}), 400)
    assert (error["code"], error["param"]) == ("invalid_value", "logit_bias")


def test_paths_and_methods(server: Server) -> None:
    error_of(server.post("/v1/embeddings", json={}), 404)
    wrong = server.get("/v1/completions")
    assert error_of(wrong, 405)["message"] and wrong.headers["allow"] == "POST"
    error_of(server.get("/v1/models/other"), 404)
    assert server.get("/docs").status_code == 404  # it would load scripts from elsewhere
    document = server.get("/openapi.json").json()
    posted = document["paths"]["/v1/completions"]["post"]
    assert set(posted["responses"]) == {"200", "4XX", "5XX"}


def test_body_limit(serve: Serve) -> None:
    """By the announced length, and by what comes without one."""
    with serve(max_body_bytes=2048) as server:
        body = json.dumps({"prompt": "a", "user": "x" * 4000}).encode()
        assert "2048 bytes" in error_of(server.post(content=body, headers=JSON), 413)["message"]

        def pieces() -> Any:
            yield from (body[i : i + 100] for i in range(0, len(body), 100))

        error_of(server.post(content=pieces(), headers=JSON), 413)
        small = {"prompt": "a", "max_tokens": 1}
        assert server.post(json=small).status_code == 200


def test_api_key(serve: Serve) -> None:
    """Asked for under /v1 only, any of several; with CORS, preflights need none."""
    with serve(api_keys=("one", "two"), allowed_origins=("https://a.example",)) as server:
        body = {"prompt": "a", "max_tokens": 1}
        for header in ({}, {"Authorization": "Bearer three"}, {"Authorization": "Basic one"}):
            error = error_of(server.post(json=body, headers=header), 401)
            assert error["code"] == "invalid_api_key"
            for path in ("/v1/models", "//v1/models", "/v1/models/", "/other"):
                error_of(server.get(path, headers=header), 401)
        for key in ("one", "two"):
            assert server.client(api_key=key).completions.create(model="tiny", prompt="a")
        assert {server.get(p).status_code for p in ("/health", "/live", "/metrics")} == {200}
        preflight = {
            "Origin": "https://a.example", "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization",
        }  # fmt: skip
        answer = httpx.options(f"{server.url}/v1/completions", headers=preflight)
        assert answer.headers["access-control-allow-origin"] == "https://a.example"
        other = httpx.options(
            f"{server.url}/v1/completions", headers={**preflight, "Origin": "https://b.example"}
        )
        assert "access-control-allow-origin" not in other.headers


def test_no_cors_by_default(server: Server) -> None:
    answer = server.get("/v1/models", headers={"Origin": "https://a.example"})
    assert "access-control-allow-origin" not in answer.headers


def test_request_ids(server: Server) -> None:
    """A harmless one is kept; any other is replaced."""
    for given_id, kept in (("run-1.a_B", True), ("a b", False), ("x" * 65, False), ("é", False)):
        header = {"X-Request-Id": given_id.encode()}
        answer = server.get("/version", headers=header).headers["x-request-id"]
        assert (answer == given_id) == kept


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
def test_numbers_that_json_has_not(server: Server, number: str) -> None:
    """An answer that repeated one would be no JSON."""
    tools = f'[{{"type": "function", "name": "f", "parameters": {{"maximum": {number}}}}}]'
    content = f'{{"input": "a", "tools": {tools}, "tool_choice": "none"}}'
    error = error_of(server.post("/v1/responses", content=content, headers=JSON), 400)
    assert "not finite" in error["message"] and error["param"] == "tools[0].parameters"


def test_an_unforeseen_failure_is_told_as_errors_are(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("trtspec.serve.front_end.FrontEnd.check_lengths")
    assert error_of(server.post(json={"prompt": "a"}), 500)["code"] == "internal_error"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
_NAMES = st.sampled_from(
    ["n", "stop", "logit_bias", "logprobs", "stream_options", "top_p", "top_k", "seed", "user",
     "bad_words", "min_tokens", "best_of", "echo", "response_format", "chat_template_kwargs",
     "messages", "prompt", "tools", "stop_token_ids", "model", "top_logprobs"]
)  # fmt: skip


@pytest.mark.slow
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    chat=st.booleans(),
    fields=st.dictionaries(_NAMES | st.text(max_size=8), _JSON, max_size=4),
)
def test_any_body_gets_an_answer_that_is_no_500(
    server: Server, chat: bool, fields: dict[str, Any]
) -> None:
    base: dict[str, Any] = {"messages": USER} if chat else {"prompt": "a"}
    body = json.dumps({**base, "max_tokens": 1, **fields})
    path = "/v1/chat/completions" if chat else "/v1/completions"
    response = server.post(path, content=body, headers=JSON)
    assert response.status_code in (200, 400, 404), (body, response.text)
    if response.status_code != 200:
        error_of(response, response.status_code)
