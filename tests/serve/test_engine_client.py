"""The protocol between server and engine: plain data is enough, and an engine may get lost."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest

from trtspec import SamplingParams, errors
from trtspec.errors import EngineError, TrtspecError
from trtspec.executor.executor_metrics import ExecutorFigures
from trtspec.llmapi.outputs import EngineLoad, RequestOutput
from trtspec.llmapi.prompts import PromptReader
from trtspec.serve import engine_client
from trtspec.serve.engine_client import (
    Conversation,
    EngineFacts,
    EngineLostError,
    GenerateRequest,
)
from trtspec.serve.local_engine import LocalEngine

from ..llmapi.conftest import TextModel
from .conftest import Server, run_server, wait_until
from .test_chat import MESSAGES
from .test_load import LONG, is_idle

PARAMS = SamplingParams(max_tokens=4, seed=1, bad_words=["x"], stop=["y"])


def copied(message: Any) -> Any:
    """What another process would get."""
    return pickle.loads(pickle.dumps(message))


class EngineByMessages(LocalEngine):
    """One that knows nothing of its engine but what would reach another process. lost_after:
    the engine is lost after so many lists of a request."""

    lost_after: int | None = None

    @property
    def facts(self) -> EngineFacts:
        return copied(super().facts)  # type: ignore[no-any-return]

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[list[RequestOutput], None]:
        reader = PromptReader(self.intake.prompts.tokenizer, self.facts.vocab_size)
        read = await self.intake.run(request.in_tokens, reader)
        number = 0
        async for gained in super().generate(copied(read)):
            if number == self.lost_after:
                raise EngineLostError("the replica 1 was lost")
            number += 1
            yield copied(gained)

    async def load(self) -> EngineLoad:
        return copied(await super().load())  # type: ignore[no-any-return]

    async def figures(self) -> ExecutorFigures:
        return copied(await super().figures())  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def apart(text_model: TextModel) -> Iterator[Server]:
    """A server whose engine might be in another process."""
    with run_server(lambda: text_model.open("tree"), engine=EngineByMessages) as running:
        yield running


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["completions", "chat/completions", "responses"])
def test_messages_are_all_that_a_server_needs(
    apart: Server, server: Server, path: str, stream: bool
) -> None:
    """The same bytes as from an engine of this process, but for ids and times."""
    body: dict[str, Any] = {"temperature": 0.8, "seed": 1, "stream": stream}
    if path == "responses":
        body |= {"input": "the cat", "max_output_tokens": 12}
    else:
        body |= {"messages": MESSAGES, "max_tokens": 12, "n": 2, "logprobs": True}
        if path == "completions":
            del body["messages"]
            body |= {"prompt": ["the cat", "a rat"], "logprobs": 2}
    answers = [each.post(f"/v1/{path}", json=body) for each in (apart, server)]
    assert [answer.status_code for answer in answers] == [200, 200]
    ours, theirs = (texts_of(answer.text, stream) for answer in answers)
    assert ours == theirs and any(ours.values())
    wait_until(lambda: is_idle(apart), "the server is idle")


def texts_of(answer: str, stream: bool) -> dict[int, str]:
    """The texts of an answer, by choice."""
    events = [answer]
    if stream:
        events = [line[6:] for line in answer.splitlines() if line.startswith("data: {")]
    texts: dict[int, str] = {}
    for event in map(json.loads, events):
        if event.get("type") == "response.output_text.delta":
            texts[0] = texts.get(0, "") + event["delta"]
        for item in event.get("output", ()):
            texts[0] = item["content"][0]["text"]
        for choice in event.get("choices", ()):
            said = choice.get("delta") or choice.get("message") or choice
            text = said.get("text") or said.get("content") or ""
            texts[choice["index"]] = texts.get(choice["index"], "") + text
    return texts


def test_figures_of_an_engine_apart(apart: Server) -> None:
    apart.post(json={**LONG, "max_tokens": 5})
    text = apart.get("/metrics").text
    assert "trtspec:engine_steps_total" in text and "trtspec:num_requests_running" in text
    health = apart.get("/v1/models").json()["data"][0]
    assert health["draft_sources"] == ["draft_model"] and health["max_model_len"] == 256


@pytest.mark.parametrize(("lists", "stream"), [(0, True), (1, True), (1, False)])
def test_an_engine_that_is_lost_before_the_first_token(
    apart: Server, monkeypatch: pytest.MonkeyPatch, lists: int, stream: bool
) -> None:
    monkeypatch.setattr(EngineByMessages, "lost_after", lists)
    answer = apart.post(json={**LONG, "stream": stream})
    assert answer.status_code == 503 and answer.headers["retry-after"]
    error = answer.json()["error"]
    assert error["code"] == "engine_lost" and "replica 1" in error["message"]
    wait_until(lambda: is_idle(apart), "the server is idle")


def test_an_engine_that_is_lost_in_a_stream(apart: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EngineByMessages, "lost_after", 3)
    answer = apart.post(json={**LONG, "stream": True})
    *_, last, done = answer.text.strip().split("\n\n")
    assert answer.status_code == 200 and done == "data: [DONE]"
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_lost"
    wait_until(lambda: is_idle(apart), "the server is idle")


def test_an_engine_that_cannot_serve_any_more_ends_the_server(text_model: TextModel) -> None:
    class Failing(LocalEngine):
        async def check_health(self) -> None:
            raise EngineError("the worker is dead")

    with run_server(text_model.open, engine=Failing) as server:
        server.thread.join(30.0)
        assert not server.thread.is_alive() and server.lifecycle.exit_code == 1
        assert server.service.detail == "the worker is dead"


def test_a_server_whose_engine_is_lost_for_now_is_not_ready_until_it_returns(
    text_model: TextModel,
) -> None:
    lost = threading.Event()

    class Lost(LocalEngine):
        async def check_health(self) -> None:
            if lost.is_set():
                raise EngineLostError("no replica is up")

    with run_server(text_model.open, engine=Lost) as server:
        lost.set()
        wait_until(lambda: server.get("/health").status_code == 503, "it is not ready")
        assert server.get("/health").json()["detail"] == "no replica is up"
        lost.clear()
        wait_until(lambda: server.get("/health").status_code == 200, "it is ready again")


def test_a_request_in_tokens(server: Server) -> None:
    """Says the same as with texts, which stay beside it."""
    reader = server.llm.prompts
    chat = Conversation(MESSAGES, {})
    prompts = ("the cat", [5, 6], {"prompt": "a rat"}, {"prompt_token_ids": [7]}, chat)
    request = GenerateRequest(prompts, PARAMS, adapter="a")
    read = request.in_tokens(reader)
    assert (read.params, read.adapter) == (PARAMS, "a")
    assert [*map(reader.read, read.prompts)] == [*map(reader.read, request.rendered(reader))]
    assert read.prompts[1] == {"prompt_token_ids": [5, 6]}
    assert read.prompts[2] == {"prompt": "a rat", "prompt_token_ids": reader.tokenize("a rat")}


def test_loads_add_up() -> None:
    one = EngineLoad(1, 2, 0.5, 30, 40, 5.0, 3, "bad")
    two = EngineLoad(2, 0, 0.0, 1, 2, 0.25)
    assert EngineLoad.merged([one, two]) == EngineLoad(3, 2, 0.25, 31, 42, 0.25)
    assert EngineLoad.merged([one]) == one


def test_errors_travel() -> None:
    kinds = [k for m in (errors, engine_client) for k in vars(m).values() if isinstance(k, type)]
    ours = [kind for kind in kinds if issubclass(kind, TrtspecError)]
    assert EngineLostError in ours and EngineError in ours
    for kind in ours:
        error = copied(kind("why"))
        assert type(error) is kind and str(error) == "why"
