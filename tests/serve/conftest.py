"""A real server on the loopback, in a thread of the test process, over a tiny eager model."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest
import uvicorn

from trtspec import LLM
from trtspec.log import logger
from trtspec.serve.app import make_app
from trtspec.serve.engine_client import EngineClient
from trtspec.serve.lifecycle import Lifecycle
from trtspec.serve.local_engine import LocalEngine
from trtspec.serve.process import DrainingServer, listen
from trtspec.serve.service import Service
from trtspec.serve.settings import ServeSettings

from ..llmapi.conftest import TextModel, text_model

__all__ = ["text_model"]

DEADLINE = 30.0
Serve = Callable[..., AbstractContextManager["Server"]]


@dataclass
class Server:
    """A running server and what is inside of it."""

    url: str
    llm: LLM
    lifecycle: Lifecycle
    thread: threading.Thread

    @property
    def service(self) -> Service:
        return self.lifecycle.service

    def client(self, **options: Any) -> openai.OpenAI:
        defaults = {"api_key": "none", "max_retries": 0, "timeout": DEADLINE}
        return openai.OpenAI(base_url=f"{self.url}/v1", **{**defaults, **options})

    def post(self, path: str = "/v1/completions", **options: Any) -> httpx.Response:
        return httpx.post(self.url + path, timeout=DEADLINE, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=DEADLINE, **options)


def wait_until(condition: Callable[[], Any], what: str, seconds: float = DEADLINE) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.005)


@contextmanager
def run_server(
    open_llm: Callable[[], LLM],
    wait: bool = True,
    engine: Callable[[LLM], EngineClient] = LocalEngine,
    **options: Any,
) -> Iterator[Server]:
    """Serve until the block ends; with `wait`, it begins when the server is ready."""
    opened: list[LLM] = []

    def remember() -> EngineClient:
        opened.append(open_llm())
        return engine(opened[0])

    settings = ServeSettings(**{"model_names": ("tiny",), "drain_timeout": 5.0, **options})
    listener = listen("127.0.0.1", 0)
    app, lifecycle = make_app(settings, remember)
    config = uvicorn.Config(app, log_config=None, lifespan="on", timeout_graceful_shutdown=5)
    server = DrainingServer(config, lifecycle)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        wait_until(lambda: server.started, "the server listens")
        if wait:
            wait_until(lambda: lifecycle.service.front_end is not None, "the engine is loaded")
        yield Server(url, opened[0] if wait else None, lifecycle, thread)  # type: ignore[arg-type]
    finally:
        server.should_exit = True
        thread.join(DEADLINE)
        assert not thread.is_alive()


@pytest.fixture
def serve(text_model: TextModel) -> Serve:
    """Open a server over the text model: `serve(method, llm_options, **settings)`."""

    def start(
        method: str = "none", llm: dict[str, Any] | None = None, **options: Any
    ) -> AbstractContextManager[Server]:
        return run_server(lambda: text_model.open(method, **(llm or {})), **options)

    return start


@pytest.fixture(scope="module")
def server(text_model: TextModel) -> Iterator[Server]:
    """A server without speculation, shared by the tests of a file."""
    with run_server(lambda: text_model.open("none")) as running:
        yield running


@pytest.fixture(autouse=True)
def own_log() -> Iterator[None]:
    """Servers set up the package's log; no test may inherit the stream of another."""
    yield
    for name in (logger.name, "uvicorn"):
        log = logging.getLogger(name)
        log.handlers = []
        log.propagate = True
        log.setLevel(logging.NOTSET)
