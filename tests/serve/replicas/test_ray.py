"""trtspec-serve over a real Ray cluster of this machine: 64 clients, a replica that is killed."""

from __future__ import annotations

import json
import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import httpx
import pytest

from trtspec import LLM, SamplingParams

from ..conftest import wait_until
from ..test_process import KEY, Process, process

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.ci]

MODEL = ("trtspec-tiny", "--backend", "eager", "--dtype", "float32", "--max-batch-size", "8")
CLIENTS, TOKENS = 64, 24
PATIENCE = 120.0
HEADERS = {"Authorization": f"Bearer {KEY}"}


@dataclass
class Reply:
    """What a client got. error: the code of the error that ended it."""

    text: str = ""
    finish_reason: str | None = None
    error: str | None = None


def body(number: int, **more: object) -> dict[str, object]:
    """Of a request; every second one is streamed."""
    asked = {"prompt": f"def function_{number}(", "temperature": 0.8, "seed": number}
    return {**asked, "max_tokens": TOKENS, "ignore_eos": True, "stream": number % 2 == 0, **more}


def ask(server: Process, number: int, begun: Event | None = None) -> Reply:
    reply = Reply()
    with httpx.stream(
        "POST",
        f"{server.url}/v1/completions",
        json=body(number),
        headers=HEADERS,
        timeout=PATIENCE,
    ) as response:
        if number % 2:
            response.read()
            (choice,) = response.raise_for_status().json()["choices"]
            return Reply(choice["text"], choice["finish_reason"])
        for line in response.raise_for_status().iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            if "error" in chunk:
                reply.error = chunk["error"]["code"]
                continue
            (choice,) = chunk["choices"]
            assert reply.finish_reason is None and reply.error is None, "it had ended"
            reply.text += choice["text"]
            reply.finish_reason = choice["finish_reason"]
            if begun is not None:
                begun.set()
    return reply


def replicas(server: Process) -> list[int]:
    """The processes of its replicas."""
    title = f"ray::ServeReplica:trtspec-{socket.gethostname()}-{server.popen.pid}:"
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().startswith(title.encode()):
                found.append(int(path.parent.name))
        except OSError:  # it has ended meanwhile
            continue
    return found


def expected() -> list[str]:
    """The texts of one process."""
    with LLM("trtspec-tiny", backend="eager", dtype="float32", max_batch_size=8) as llm:
        params = [
            SamplingParams(max_tokens=TOKENS, temperature=0.8, seed=i, ignore_eos=True)
            for i in range(CLIENTS)
        ]
        prompts = [str(body(i)["prompt"]) for i in range(CLIENTS)]
        return [output.outputs[0].text for output in llm.generate(prompts, params, use_tqdm=False)]


def test_a_killed_replica_loses_no_reply_and_doubles_none() -> None:
    texts = expected()
    with process(*MODEL, "-dp", "2", "--distributed-executor-backend", "ray") as server:
        wait_until(server.is_ready, "it is ready", PATIENCE)
        first = replicas(server)
        assert len(first) == 2 and server.gauge("replicas_up") == 2

        begun = Event()
        with ThreadPoolExecutor(CLIENTS) as pool:
            futures = [pool.submit(ask, server, number, begun) for number in range(CLIENTS)]
            assert begun.wait(PATIENCE)
            os.kill(first[0], signal.SIGKILL)
            replies = [future.result() for future in futures]
        lost = [n for n, reply in enumerate(replies) if reply.error is not None]
        for number, reply in enumerate(replies):
            if number in lost:
                assert number % 2 == 0 and reply.error == "engine_lost"
                assert len(reply.text) > 0 and texts[number].startswith(reply.text)
            else:
                assert (reply.text, reply.finish_reason) == (texts[number], "length")
        assert server.is_ready()
        assert server.gauge("requests_lost_total") == len(lost) < CLIENTS // 2
        assert server.gauge("requests_resent_total") > 0

        # Ray starts another one, which serves as the others do.
        wait_until(lambda: server.gauge("replicas_started_total") == 3, "another", PATIENCE)
        assert server.gauge("replicas_up") == 2
        with ThreadPoolExecutor(8) as pool:
            again = pool.map(lambda number: ask(server, number), range(8))
            assert [reply.text for reply in again] == texts[:8]

        # A client that leaves ends its request; what was served is counted, by the dead one too.
        long = body(0, max_tokens=800)
        with httpx.stream(
            "POST", f"{server.url}/v1/completions", json=long, headers=HEADERS
        ) as response:
            lines = response.raise_for_status().iter_lines()  # closes the stream where it ends
            next(lines)
            wait_until(lambda: server.gauge("num_requests_running") == 1, "it runs")
        wait_until(lambda: server.gauge("num_requests_running") == 0, "it was ended")
        assert server.gauge("generation_tokens_total") >= TOKENS * (CLIENTS - len(lost) + 8)

        for each in replicas(server):
            os.kill(each, signal.SIGKILL)
        wait_until(lambda: not server.is_ready(), "none is up")
        answer = httpx.post(f"{server.url}/v1/completions", json=body(1), headers=HEADERS)
        assert answer.status_code == 503 and answer.json()["error"]["code"] == "engine_lost"
        server.popen.send_signal(signal.SIGTERM)
        assert server.popen.wait(PATIENCE) == 0
        wait_until(lambda: not replicas(server), "none is left")
