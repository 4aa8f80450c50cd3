"""From the start to the end: loading, faults of the engine, draining, log lines."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from trtspec.errors import BuildError
from trtspec.log import logger
from trtspec.serve.logs import JsonFormatter, ReadableFormatter
from trtspec.serve.process import listen

from .. import inside
from ..e2e.helpers import assert_no_leak
from ..llmapi.conftest import TextModel
from .conftest import DEADLINE, Serve, Server, run_server, wait_until
from .test_load import LONG, is_idle, slow_down

STREAM = {**LONG, "stream": True}


def last_error(response: httpx.Response) -> dict[str, Any]:
    """The error event at the end of a stream that had begun, or the error of a plain answer."""
    if response.headers["content-type"] == "application/json":
        return response.json()["error"]  # type: ignore[no-any-return]
    *_, last, done, _ = response.text.split("\n\n")
    assert done == "data: [DONE]"
    return json.loads(last.removeprefix("data: "))["error"]  # type: ignore[no-any-return]


def both(pool: ThreadPoolExecutor, server: Server) -> list[Future[httpx.Response]]:
    """A plain request and a stream, both under way with some tokens."""
    futures = [pool.submit(server.post, json=body) for body in (LONG, STREAM)]
    wait_until(lambda: server.llm.get_metrics()["num_steps"] >= 40, "both run")
    return futures


def test_while_the_engine_is_loaded(text_model: TextModel) -> None:
    """Alive but not ready; the step of the build is told; requests are asked to come back."""
    go = threading.Event()

    def load() -> Any:
        logger.info("compile target ...")
        assert go.wait(DEADLINE)
        return text_model.open()

    logger.setLevel(logging.INFO)
    with run_server(load, wait=False) as server:
        wait_until(lambda: "compile" in server.service.detail, "the step is shown")
        assert server.get("/live").status_code == server.get("/version").status_code == 200
        health = server.get("/health")
        assert health.status_code == 503
        assert health.json() == {"status": "starting", "detail": "compile target ..."}
        refused = server.post(json=LONG)
        assert refused.status_code == 503 and refused.headers["retry-after"]
        assert refused.json()["error"]["code"] == "server_starting"
        assert server.get("/metrics").status_code == 200
        go.set()
        wait_until(lambda: server.get("/health").status_code == 200, "the server is ready")
        assert server.post(json={"prompt": "a"}).status_code == 200


def test_an_engine_that_cannot_be_loaded() -> None:
    """The server stops, with an exit code that says so."""

    def load() -> Any:
        raise BuildError("no compiler")

    with run_server(load, wait=False) as server:
        server.thread.join(DEADLINE)
        assert not server.thread.is_alive()
        assert (server.lifecycle.exit_code, server.service.detail) == (1, "no compiler")


def test_a_failed_step_fails_what_runs_and_no_more(serve: Serve) -> None:
    with serve("chain") as server, ThreadPoolExecutor(2) as pool:
        slow_down(server, 0.01)
        target = inside.target(server.llm)
        forward = target.forward
        futures = both(pool, server)

        def broken(*args: Any) -> Any:
            target.forward = forward
            raise RuntimeError("bad kernel")

        target.forward = broken
        plain, stream = (future.result(DEADLINE) for future in futures)
        assert (plain.status_code, stream.status_code) == (500, 200)
        for response in (plain, stream):
            error = last_error(response)
            assert "bad kernel" in error["message"] and error["type"] == "server_error"
        wait_until(lambda: is_idle(server), "the server is idle")
        assert_no_leak(server.llm)
        assert server.get("/health").status_code == 200
        assert server.post(json={**LONG, "max_tokens": 5}).status_code == 200
        assert server.lifecycle.exit_code == 0


def test_a_stream_that_fails_before_its_first_token_has_an_error_status(serve: Serve) -> None:
    with serve() as server:
        target = inside.target(server.llm)

        def broken(*args: Any) -> Any:
            raise RuntimeError("bad kernel")

        target.forward = broken
        response = server.post(json=STREAM)
        assert response.status_code == 500 and "bad kernel" in last_error(response)["message"]


def test_a_dead_worker_ends_the_server(serve: Serve) -> None:
    """Everybody is told, and the exit code is not 0."""
    with serve() as server, ThreadPoolExecutor(2) as pool:
        slow_down(server, 0.01)
        futures = both(pool, server)

        def die() -> Any:
            raise SystemExit("lost")

        inside.executor(server.llm).step = die
        for future in futures:
            assert "worker died" in last_error(future.result(DEADLINE))["message"]
        server.thread.join(DEADLINE)
        assert not server.thread.is_alive() and server.lifecycle.exit_code == 1


def test_a_hung_step_ends_the_server(serve: Serve) -> None:
    """The requests get 500 though the engine never comes back."""
    release = threading.Event()
    with serve(step_timeout=0.5) as server, ThreadPoolExecutor(2) as pool:
        slow_down(server, 0.01)
        futures = both(pool, server)
        try:
            inside.target(server.llm).forward = lambda *args: release.wait(DEADLINE)
            for future in futures:
                assert "--step-timeout" in last_error(future.result(DEADLINE))["message"]
            server.thread.join(DEADLINE)
            assert not server.thread.is_alive()
            assert server.lifecycle.hung and server.lifecycle.exit_code == 1
        finally:
            release.set()
        server.llm.shutdown()


@pytest.mark.slow
def test_draining(serve: Serve) -> None:
    """What runs is finished, what comes is refused, and then the server ends."""
    with serve(drain_timeout=DEADLINE) as server, ThreadPoolExecutor(2) as pool:
        slow_down(server, 0.005)
        futures = both(pool, server)
        server.lifecycle.drain()
        wait_until(lambda: server.service.status.value == "draining", "it drains")
        assert server.get("/health").status_code == 503
        assert server.get("/live").status_code == 200
        refused = server.post(json=LONG)
        assert refused.status_code == 503 and "draining" in refused.json()["error"]["message"]
        plain, stream = (future.result(DEADLINE) for future in futures)
        assert plain.json()["usage"]["completion_tokens"] == 240
        assert stream.text.endswith("data: [DONE]\n\n") and '"error"' not in stream.text
        server.thread.join(DEADLINE)
        assert not server.thread.is_alive() and server.lifecycle.exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("twice", [False, True])
def test_draining_has_an_end(serve: Serve, twice: bool) -> None:
    """After its time, or at a second signal, what still runs is ended with a reason."""
    with serve(drain_timeout=DEADLINE if twice else 0.2) as server, ThreadPoolExecutor(2) as pool:
        slow_down(server, 0.1)
        futures = both(pool, server)
        for _ in range(1 + twice):
            server.lifecycle.drain()
        for future in futures:
            assert last_error(future.result(DEADLINE))["code"] == "server_stopped"
        server.thread.join(10.0)
        assert not server.thread.is_alive() and server.lifecycle.exit_code == 0


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def test_log_lines(serve: Serve) -> None:
    """One a request, with its id and figures, and one on the whole; no prompt, no text."""
    lines = Lines()
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)
    with serve("tree", log_interval=0.1) as server:
        header = {"X-Request-Id": "my-id"}
        body = {"prompt": "the secret cat", "max_tokens": 20, "temperature": 0}
        answer = server.post(json=body, headers=header).json()
        assert server.post(json={**body, "n": 0}).status_code == 400
        time.sleep(0.35)

    def dicts() -> list[dict[str, Any]]:
        return [json.loads(JsonFormatter().format(record)) for record in lines.records]

    (served,) = [line for line in dicts() if line.get("request_id") == "my-id"]
    assert served["id"] == answer["id"] == "cmpl-my-id"
    assert served["completion_tokens"] == answer["usage"]["completion_tokens"]
    assert served["status"] == 200 and served["acceptance_length"] > 1
    assert [line["status"] for line in dicts() if "path" in line] == [200, 400]
    beats = [line for line in dicts() if "kv_cache_usage" in line]
    assert sum(b["generated_tokens_per_second"] for b in beats) > 0
    idle = [b for b in beats if not (b["running"] or b["generated_tokens_per_second"])]
    assert len(idle) <= 1, "an idle server goes on logging"
    text = "\n".join(ReadableFormatter().format(record) for record in lines.records)
    assert "acceptance length" in text and "cmpl-my-id POST /v1/completions 200 in" in text
    assert "secret" not in text
    assert time.strptime(text[:19], "%Y-%m-%d %H:%M:%S")


def test_quiet_logs(serve: Serve) -> None:
    lines = Lines()
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)
    with serve(log_requests=False, log_interval=0.0) as server:
        lines.records.clear()
        assert server.post(json={"prompt": "a"}).status_code == 200
        assert not lines.records


def test_a_taken_port() -> None:
    taken = listen("127.0.0.1", 0)
    with taken, pytest.raises(Exception, match=r"cannot listen on 127\.0\.0\.1:\d+: Address"):
        listen("127.0.0.1", taken.getsockname()[1])


def test_replies_do_not_wait_for_acknowledgements() -> None:
    with listen("127.0.0.1", 0) as listener:
        client = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
        with client, accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


def break_target(server: Server) -> Callable[[], None]:
    """Let every engine step fail, until what is returned is called."""
    target, forward = server.llm._runtime.target, server.llm._runtime.target.forward

    def broken(*args: Any) -> Any:
        raise RuntimeError("bad kernel")

    def mend() -> None:
        target.forward = forward  # type: ignore[method-assign]

    target.forward = broken  # type: ignore[method-assign]
    return mend


def test_a_server_whose_every_step_fails_ends(serve: Serve) -> None:
    """It says why, and its exit code is not 0; one failure less, and all is well."""
    with serve(max_failed_steps=3) as server:
        mend = break_target(server)
        for _ in range(2):
            assert server.post(json=LONG).status_code == 500
        mend()
        assert server.post(json={"prompt": "a"}).status_code == 200
        break_target(server)
        for _ in range(2):
            assert server.post(json=LONG).status_code == 500
        time.sleep(0.6)  # the watch has looked
        assert server.get("/health").status_code == 200
        assert server.post(json=LONG).status_code == 500
        server.thread.join(DEADLINE)
        assert not server.thread.is_alive() and server.lifecycle.exit_code == 1
        detail = server.service.detail
        assert "3 engine steps in a row failed" in detail and "bad kernel" in detail


def test_a_server_that_stays_after_failures(serve: Serve) -> None:
    """It is not ready while every step fails, and is again after one that does not."""
    with serve(max_failed_steps=2, stay_after_failures=True) as server:
        mend = break_target(server)
        for _ in range(2):
            assert server.post(json=LONG).status_code == 500
        wait_until(lambda: server.get("/health").status_code == 503, "it is not ready")
        health = server.get("/health").json()
        assert health["status"] == "failing" and "bad kernel" in health["detail"]
        assert server.get("/live").status_code == 200
        assert server.post(json=LONG).status_code == 500
        wait_until(lambda: "3 engine steps" in server.get("/health").json()["detail"], "it counts")
        mend()
        assert server.post(json={"prompt": "a"}).status_code == 200
        wait_until(lambda: server.get("/health").status_code == 200, "it is ready again")
        assert server.get("/health").json() == {"status": "ready", "detail": ""}
        break_target(server)
        server.lifecycle.drain()
        server.thread.join(DEADLINE)
        assert not server.thread.is_alive() and server.lifecycle.exit_code == 0
