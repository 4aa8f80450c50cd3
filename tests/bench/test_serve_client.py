"""The client against a server that misbehaves on purpose: every failure is one, with its reason."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from trtspec.bench.serving.answer import RequestRecord
from trtspec.bench.serving.client import ServeClient, shown_url
from trtspec.bench.serving.load import CHAT_ENDPOINT, ENDPOINTS, LoadTest
from trtspec.errors import ConfigError

from .fake_openai import Exchange, FakeServer, fake_server, well


def ask(
    server: FakeServer, *prompts: str, endpoint: str = ENDPOINTS[0], timeout: float = 20.0
) -> list[RequestRecord]:
    """One request after the other, over the same client."""
    load = LoadTest("x", endpoint=endpoint, num_prompts=max(len(prompts), 1))

    async def run() -> list[RequestRecord]:
        async with ServeClient(server.url, timeout=timeout) as client:
            began = client.clock()
            return [
                await client.generate(endpoint, load.body("m", p, i), i, began)
                for i, p in enumerate(prompts)
            ]

    return asyncio.run(run())


def test_an_answer_and_its_connection_are_used_again() -> None:
    with fake_server() as server:
        records = ask(server, "p", "q", "r")
    for index, record in enumerate(records):
        assert record.error is None and record.index == index and record.finish_reason == "length"
        assert (record.prompt_tokens, record.output_tokens) == (7, 4)
        assert record.ttft is not None and record.e2e is not None and len(record.itl) == 2
        assert 0 < record.ttft <= record.e2e < 20
    assert records[0].start < records[1].start < records[2].start
    assert server.texts == ["p", "q", "r"] and server.connections == 1
    body = server.exchanges[2].body
    assert body == {
        "model": "m", "prompt": "r", "max_tokens": 128, "temperature": 0.0, "seed": 2,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip


def test_a_chat() -> None:
    async def chat(exchange: Exchange) -> None:
        await exchange.open()
        await exchange.event(choices=[{"delta": {"role": "assistant", "content": ""}}])
        await exchange.tokens("a", "b", reason=None)
        await exchange.event(choices=[{"delta": {}, "finish_reason": "stop"}])
        await exchange.usage(9, 3)
        await exchange.end()

    with fake_server(chat) as server:
        (record,) = ask(server, "hi", endpoint=CHAT_ENDPOINT)
    assert server.exchanges[0].path == CHAT_ENDPOINT
    assert server.exchanges[0].body["messages"] == [{"role": "user", "content": "hi"}]
    assert record.error is None and len(record.itl) == 1 and record.output_tokens == 3


def test_events_and_characters_cut_anywhere() -> None:
    stream = (
        b'data: {"choices": [{"text": "\xc3\xa4\xf0\x9f\x98\x80", "finish_reason": null}]}\r\n\r\n'
        b": ping\r\n\r\n"
        b'data: {"choices": [{"text": "\xe2\x82\xac", "finish_reason": "stop"}]}\r\n\r\n'
        b"data: [DONE]\r\n\r\n"
    )

    async def cut(exchange: Exchange) -> None:
        await exchange.open()
        size = int(exchange.text)
        for i in range(0, len(stream), size):
            await exchange.send(stream[i : i + size])
            await asyncio.sleep(0)
        await exchange.end(mark=False)

    with fake_server(cut) as server:
        records = ask(server, "1", "3", "7", "1000")
    assert [record.error for record in records] == [None] * 4
    assert len({record.text_sha256 for record in records}) == 1
    assert [len(record.itl) for record in records] == [1] * 4


async def refuse(exchange: Exchange) -> None:
    await exchange.reply(429, '{"error": {"message": "the queue\\n is full", "code": 429}}')


async def refuse_plainly(exchange: Exchange) -> None:
    await exchange.reply(502, "<html>Bad gateway</html>", "text/html")


async def refuse_silently(exchange: Exchange) -> None:
    await exchange.reply(500, "")


async def answer_whole(exchange: Exchange) -> None:
    await exchange.reply(200, '{"choices": [{"text": "abc"}]}')


async def break_off(exchange: Exchange) -> None:
    await exchange.open()
    await exchange.tokens("a", "b", reason=None)
    exchange.cut()


async def end_too_soon(exchange: Exchange) -> None:
    await exchange.open()
    await exchange.tokens("a", "b", reason=None)
    await exchange.end(mark=False)


async def cut_at_once(exchange: Exchange) -> None:
    exchange.cut()


async def fail_within(exchange: Exchange) -> None:
    await exchange.open()
    await exchange.tokens("a", reason=None)
    await exchange.event(error={"message": "the engine failed", "type": "server_error"})
    await exchange.end()


async def speak_nonsense(exchange: Exchange) -> None:
    await exchange.open()
    await exchange.send(b"data: {nonsense\n\n")
    await exchange.end()


@pytest.mark.parametrize(
    ("behave", "reason"),
    [
        (refuse, "HTTP 429: the queue is full"),
        (refuse_plainly, "HTTP 502: <html>Bad gateway</html>"),
        (refuse_silently, "HTTP 500: no reason given"),
        (answer_whole, "no event stream but application/json"),
        (break_off, "the connection broke: "),
        (end_too_soon, "the stream broke off after 2 token events"),
        (cut_at_once, "the connection broke: "),
        (fail_within, "the stream reports an error: the engine failed"),
        (speak_nonsense, "not JSON: '{nonsense'"),
    ],
)
def test_failures_have_reasons_and_the_next_request_is_well(
    behave: Callable[[Exchange], Awaitable[None]], reason: str
) -> None:
    async def first_badly(exchange: Exchange) -> None:
        await (behave if exchange.text == "bad" else well)(exchange)

    with fake_server(first_badly) as server:
        bad, good = ask(server, "bad", "good")
    assert bad.error is not None and reason in bad.error
    assert bad.ttft is None and bad.output_tokens is None and bad.itl == ()
    assert good.error is None and good.output_tokens == 4


def test_a_connection_that_breaks_after_the_answer_s_end() -> None:
    async def late(exchange: Exchange) -> None:
        await exchange.open()
        await exchange.tokens("a", "b")
        await exchange.usage(7, 2)
        await asyncio.sleep(0.1)  # so that the bytes arrive before the reset does
        exchange.cut()

    with fake_server(late) as server:
        (record,) = ask(server, "p")
    assert record.error is None and record.output_tokens == 2


def test_a_response_that_stays_open_after_its_end_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtspec.bench.serving.client._REST_TIMEOUT", 0.05)

    async def linger(exchange: Exchange) -> None:
        await exchange.open()
        await exchange.tokens("a", "b")
        await exchange.send(b"data: [DONE]\n\n")
        await asyncio.sleep(60)

    with fake_server(linger) as server:
        (record,) = ask(server, "p")
    assert record.error is None and record.e2e is not None and record.e2e < 20


def test_a_response_that_stays_open_without_an_end_mark() -> None:
    async def linger(exchange: Exchange) -> None:
        await exchange.open()
        await exchange.tokens("a", "b")
        await asyncio.sleep(60)

    with fake_server(linger) as server:
        (record,) = ask(server, "p", timeout=0.5)
    assert record.error is None and record.finish_reason == "length"


@pytest.mark.parametrize("tokens", [0, 2])
def test_a_timeout_is_for_the_whole_answer(tokens: int) -> None:
    async def hang(exchange: Exchange) -> None:
        if exchange.text == "good":
            return await well(exchange)
        if tokens:
            await exchange.open()
            await exchange.tokens(*"ab", reason=None)
        await asyncio.sleep(60)
        return None

    with fake_server(hang) as server:
        bad, _ = ask(server, "bad", "good", timeout=0.3)
    assert bad.error == "no whole answer within 0.3 s"


def test_a_proxy_of_the_environment_is_not_for_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with fake_server() as server:
        (record,) = ask(server, "p")
    assert record.error is None


def test_nobody_is_there() -> None:
    with fake_server() as server:
        url = server.url
    server.url = url
    (record,) = ask(server, "p")
    assert record.error is not None and record.error.startswith("cannot connect: ")
    with pytest.raises(ConfigError, match="no server answers at http://127"):
        asyncio.run(_with(url, ServeClient.first_model))


async def _with(url: str, method: Callable[[ServeClient], Awaitable[Any]], **more: Any) -> Any:
    async with ServeClient(url, **more) as client:
        return await method(client)


def test_what_else_a_server_is_asked() -> None:
    texts = iter(["a 1\n", "a 2\n"])
    with fake_server(metrics=texts) as server:
        for url in (server.url, server.url + "/", server.url + "/v1", server.url + "/v1/"):
            assert asyncio.run(_with(url, ServeClient.first_model)) == "fake-1"
        assert asyncio.run(_with(server.url, ServeClient.version)) == "9.9"
        assert asyncio.run(_with(server.url, ServeClient.metrics, api_key="s3")) == "a 1\n"
    assert server.gets[-1][1]["authorization"] == "Bearer s3"
    assert "authorization" not in server.gets[0][1]
    with fake_server() as server:
        assert asyncio.run(_with(server.url, ServeClient.metrics)) is None
        with pytest.raises(ConfigError, match=r"answers 404 \(Not Found\); give --model"):
            asyncio.run(_with(server.url + "/elsewhere", ServeClient.first_model))


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8000", "ftp://a", "http://", "http://a:x", "http://a/?b=c", ""]
)
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(ConfigError, match="is not a URL such as http"):
        ServeClient(url)


def test_passwords_are_not_shown() -> None:
    assert shown_url("http://me:secret@host:1/v1") == "http://host:1/v1"
    with pytest.raises(ConfigError) as error:
        ServeClient("http://me:secret@host:port")
    assert "secret" not in str(error.value)
    with pytest.raises(ConfigError, match="printable ASCII") as error:
        ServeClient("http://host", api_key="s3cret\n")
    assert "s3cret" not in str(error.value)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtspec.bench.serving.client.HAS_HTTPX", False)
    with pytest.raises(ConfigError, match=r"pip install 'trtspec\[bench\]'"):
        ServeClient("http://host")
