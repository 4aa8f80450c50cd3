"""Connections and their ends: HEAD, idle ones, silent streams, signals."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import uvicorn

from trtspec import SamplingParams
from trtspec.commands.serve import make_parser, server_options
from trtspec.log import logger
from trtspec.serve import process
from trtspec.serve.lifecycle import Lifecycle
from trtspec.serve.settings import ServeSettings

from .. import inside
from ..llmapi.conftest import TextModel
from .conftest import DEADLINE, Serve, Server, run_server, wait_until
from .test_lifecycle import last_error
from .test_load import LONG, slow_down

STREAM = {**LONG, "max_tokens": 3, "stream": True}
ROUTES = ("/", "/health", "/live", "/version", "/metrics", "/openapi.json", "/v1/models")


@pytest.mark.parametrize("path", [*ROUTES, "/v1/models/tiny"])
def test_head_is_get_without_a_body(server: Server, path: str) -> None:
    got, head = server.get(path), httpx.head(server.url + path)
    assert (head.status_code, head.content) == (got.status_code, b"")
    assert head.headers["content-type"] == got.headers["content-type"]
    if path != "/metrics":
        assert head.headers["content-length"] == str(len(got.content))


def test_head_of_what_is_posted(server: Server) -> None:
    head = httpx.head(server.url + "/v1/completions")
    assert head.status_code == 405 and head.headers["allow"] == "POST"


def test_idle_connections_are_kept_longer_than_by_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """aiohttp keeps them 15 s, and other pools up to a minute."""
    configs: list[uvicorn.Config] = []

    class Configured(Exception):
        pass

    def remember(config: uvicorn.Config, lifecycle: Lifecycle) -> None:
        configs.append(config)
        raise Configured

    monkeypatch.setattr(process, "DrainingServer", remember)
    monkeypatch.setattr(process.sys, "setswitchinterval", lambda seconds: None)
    for flags in ([], ["--keep-alive-timeout", "120.5"]):
        options = server_options(make_parser().parse_args(["m", "--port", "0", *flags]))
        with pytest.raises(Configured):
            process.run_server(ServeSettings(**options), lambda: None)  # type: ignore[arg-type,return-value]
    assert [config.timeout_keep_alive for config in configs] == [75, 121]


@contextmanager
def lines(server: Server, body: dict[str, Any]) -> Iterator[Iterator[str]]:
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=DEADLINE) as got:
        assert got.status_code == 200 and got.headers["content-type"].startswith("text/event")
        yield (line for line in got.iter_lines() if line)


def test_a_stream_that_waits_says_so(serve: Serve) -> None:
    """Behind a long request, its headers come before its first token, and comments go on."""
    with serve(llm={"max_batch_size": 1}, first_comment=0.05, comment_interval=0.1) as server:
        slow_down(server, 0.02)
        ahead = server.llm.generate_async("the cat", _params(240))
        wait_until(lambda: server.llm.load().num_running, "the first runs")
        with lines(server, STREAM) as stream:
            assert [next(stream), next(stream)] == [": waiting"] * 2
            ahead.abort()
            rest = [line for line in stream if line != ": waiting"]
        assert rest[0].startswith("data: {") and rest[-1] == "data: [DONE]"
        answer = server.client().completions.create(model="tiny", prompt="a", stream=True)
        assert all(chunk.choices for chunk in answer)


def test_a_stream_that_fails_while_it_waits(serve: Serve) -> None:
    with serve(first_comment=0.05) as server:
        target = inside.target(server.llm)

        def broken(*args: Any) -> Any:
            time.sleep(0.3)
            raise RuntimeError("bad kernel")

        target.forward = broken
        response = server.post(json=STREAM)
        assert response.status_code == 200 and response.text.startswith(": waiting\n\n")
        assert "bad kernel" in last_error(response)["message"]


def _params(tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, ignore_eos=True)


def test_health_says_it_before_requests_are_refused(serve: Serve) -> None:
    """So that a balancer looks elsewhere before anybody is turned away."""
    with serve(drain_seconds=0.6) as server:
        server.lifecycle.drain(announced=True)
        wait_until(lambda: server.get("/health").status_code == 503, "it is told")
        assert server.get("/health").json()["status"] == "leaving"
        assert server.post(json={"prompt": "a"}).status_code == 200
        assert server.thread.is_alive()
        server.thread.join(DEADLINE)
        assert not server.thread.is_alive() and server.lifecycle.exit_code == 0


def test_a_second_signal_waits_no_longer(serve: Serve) -> None:
    with serve(drain_seconds=DEADLINE) as server:
        server.lifecycle.drain(announced=True)
        wait_until(lambda: server.service.status.value == "leaving", "it is told")
        began = time.monotonic()
        server.lifecycle.drain(announced=True)
        server.thread.join(DEADLINE)
        assert time.monotonic() - began < DEADLINE / 2


class Told:
    """In place of a life cycle."""

    def __init__(self) -> None:
        self.drains: list[bool] = []
        self.on_stop = lambda: None

    def drain(self, announced: bool) -> None:
        self.drains.append(announced)


def test_signals() -> None:
    """SIGHUP drains as SIGTERM does, where it is not ignored (nohup); SIGINT at once."""
    told = Told()
    server = process.DrainingServer(uvicorn.Config(lambda: None), told)  # type: ignore[arg-type]
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with server.capture_signals():
            for sig in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
                signal.raise_signal(sig)
        assert told.drains == [True, True, False]
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with server.capture_signals():
            signal.raise_signal(signal.SIGHUP)
        assert len(told.drains) == 3
    finally:
        signal.signal(signal.SIGHUP, before)


def test_requests_are_no_step_of_a_build(text_model: TextModel) -> None:
    """What /health tells of a start is not the line of a request that came meanwhile."""
    go = threading.Event()

    def load() -> Any:
        logger.info("compile target ...")
        assert go.wait(DEADLINE)
        return text_model.open()

    logger.setLevel("INFO")
    with run_server(load, wait=False) as server:
        wait_until(lambda: "compile" in server.service.detail, "the step is shown")
        assert server.post(json=LONG).status_code == 503
        assert server.get("/v1/models").status_code == 503
        assert server.get("/health").json()["detail"] == "compile target ..."
        go.set()
        wait_until(lambda: server.get("/health").status_code == 200, "the server is ready")


def test_the_page_allows_its_own_icon(server: Server) -> None:
    response = server.get("/")
    assert '<link rel="icon" href="data:,">' in response.text
    assert "img-src data:" in response.headers["content-security-policy"]


def test_a_cancelled_stream_of_comments_ends(serve: Serve) -> None:
    """A client that leaves while it waits takes its request along."""
    with serve(llm={"max_batch_size": 1}, first_comment=0.05) as server:
        slow_down(server, 0.02)
        ahead = server.llm.generate_async("the cat", _params(240))
        wait_until(lambda: server.llm.load().num_running, "the first runs")

        async def leave() -> None:
            async with httpx.AsyncClient(timeout=DEADLINE) as client:
                url = f"{server.url}/v1/completions"
                async with client.stream("POST", url, json=STREAM) as got:
                    await anext(got.aiter_lines())

        asyncio.run(leave())
        wait_until(lambda: not server.llm.load().num_waiting, "nobody waits")
        ahead.abort()
