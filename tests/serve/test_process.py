"""trtspec-serve as users run it: a process of its own, its clients, signals and exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import pytest

from trtspec import SamplingParams
from trtspec.commands.serve import main, make_parser, server_options

from ..e2e.helpers import TinyModels
from ..llmapi.conftest import TextModel
from .conftest import DEADLINE, wait_until

KEY = "open sesame"
LONG = {"model": "tiny", "prompt": "the cat", "max_tokens": 100, "temperature": 0.8, "seed": 1}
PARAMS = SamplingParams(max_tokens=100, temperature=0.8, seed=1)
ANY_LENGTH = {"extra_body": {"ignore_eos": True}}
# A client that prints the first bytes of a stream and then waits to be killed.
CLIENT = """
import http.client, json, sys, time
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
body = json.dumps({"prompt": "the cat", "max_tokens": 240, "ignore_eos": True, "stream": True})
headers = {"Authorization": "Bearer open sesame", "Content-Type": "application/json"}
connection.request("POST", "/v1/completions", body, headers)
print(connection.getresponse().readline().decode(), flush=True)
time.sleep(60)
"""


class Process:
    """A server process whose log lines (JSON) are collected."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "trtspec.commands.serve", *arguments, "--port", "0"]
        environment = {**os.environ, "TRTSPEC_API_KEY": KEY}
        self.popen = subprocess.Popen(
            [*command, "--log-json"], stderr=subprocess.PIPE, text=True, env=environment
        )
        self.lines: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        wait_until(lambda: self.port or self.popen.poll() is not None, "it listens", 2 * DEADLINE)

    def _read(self) -> None:
        assert self.popen.stderr is not None
        for line in self.popen.stderr:
            try:
                self.lines.append(json.loads(line))
            except ValueError:
                self.lines.append({"message": line, "level": "stray"})

    @property
    def port(self) -> int:
        for line in self.lines:
            found = re.match(r"listening on http://127\.0\.0\.1:(\d+)", line["message"])
            if found:
                return int(found[1])
        return 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def is_ready(self) -> bool:
        return httpx.get(f"{self.url}/health").status_code == 200

    def client(self, key: str = KEY) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=2 * DEADLINE
        )

    def gauge(self, name: str) -> float:
        text = httpx.get(f"{self.url}/metrics").text
        found = re.search(rf"^trtspec:{name}{{[^}}]*}} (\S+)$", text, re.MULTILINE)
        assert found, name
        return float(found[1])

    def wait(self) -> int:
        code = self.popen.wait(DEADLINE)
        self._reader.join(DEADLINE)
        return code


@contextmanager
def process(*arguments: str) -> Iterator[Process]:
    running = Process(*arguments)
    try:
        yield running
    finally:
        running.popen.kill()
        running.popen.wait()


@pytest.mark.slow
def test_a_life(text_model: TextModel) -> None:
    """Start, the official client, a client killed in mid-stream, SIGTERM under load, the end."""
    speculation = {
        "method": "draft_model", "model": str(text_model.draft), "num_speculative_tokens": 3
    }  # fmt: skip
    with process(
        str(text_model.folder), "--served-model-name", "tiny", "--backend", "eager",
        "--dtype=float32", "--max_batch_size", "4", "--speculative-config", json.dumps(speculation),
    ) as server:  # fmt: skip
        wait_until(server.is_ready, "it is ready")
        with pytest.raises(openai.AuthenticationError):
            server.client("wrong").models.list()
        client = server.client()
        answer = client.completions.create(**LONG)
        with text_model.open() as llm:
            (expected,) = llm.submit(["the cat"], PARAMS)
            assert answer.choices[0].text == expected.result().outputs[0].text

        command = [sys.executable, "-c", CLIENT, str(server.port)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as killed:
            assert killed.stdout is not None and killed.stdout.readline().startswith("data: {")
            killed.send_signal(signal.SIGKILL)
        wait_until(lambda: not server.gauge("num_requests_running"), "its blocks are free")
        assert server.gauge("kv_cache_usage_perc") == 0
        wait_until(lambda: any(x.get("status") == 499 for x in server.lines), "it is logged", 5.0)

        def stream(_: int) -> str:
            parts = client.completions.create(stream=True, **LONG, **ANY_LENGTH)
            return "".join(chunk.choices[0].text for chunk in parts)

        with ThreadPoolExecutor(6) as pool:
            futures = [pool.submit(stream, i) for i in range(6)]
            wait_until(lambda: server.gauge("num_requests_running") == 4, "the batch is full")
            server.popen.send_signal(signal.SIGTERM)
            texts = {future.result() for future in futures}
        assert len(texts) == 1 and texts.pop().startswith(answer.choices[0].text)
        assert server.wait() == 0
    assert [x for x in server.lines if x["level"] not in ("info", "warning")] == []
    served = [x for x in server.lines if x.get("path") == "/v1/completions"]
    assert [x["status"] for x in served] == [200, 499] + [200] * 6
    assert server.lines[-1]["message"] == "stopped"


def test_a_model_that_cannot_be_served(
    models: TinyModels, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a tokenizer there is no text: the log says so, and the exit code is 1."""
    assert main([str(models.folder("llama")), "--backend", "eager", "--port", "0"]) == 1
    lines = capsys.readouterr().err.splitlines()
    (error,) = [line for line in lines if " ERROR " in line]
    assert "holds no tokenizer" in error and lines[-1].endswith("stopped after a failure")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give one model"),
        (["a", "--model", "b"], "give one model"),
        (["no/such/folder"], "no/such/folder"),
        (["trtspec-tiny", "--speculative-config", "{"], "not JSON"),
        (["trtspec-tiny", "--speculative-config", '{"method": "telepathy"}'], "telepathy"),
        (["trtspec-tiny", "--dtype", "int3"], "int3"),
        (["trtspec-tiny", "--max-queue", "-1"], "max_queue=-1"),
        (["trtspec-tiny", "--api-key", ""], "api_key is empty"),
        (["trtspec-tiny", "--kv-cache-max-tokens", "0"], "max_tokens=0"),
        (["trtspec-tiny", "--chat-template", "no/such/file"], "no/such/file"),
        (["trtspec-tiny", "--chat-template", os.devnull], "holds no template"),
        (["trtspec-tiny", "--ssl-certfile", "x"], "go together"),
    ],
)
def test_flags_that_cannot_be_honoured(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Found before anything is loaded, in one line."""
    assert main(arguments) == 1
    error = capsys.readouterr().err.strip()
    assert error.startswith("trtspec-serve: ") and message in error and "\n" not in error


def test_the_key_comes_from_the_flag_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTSPEC_API_KEY", "of the environment")
    parse = make_parser().parse_args
    assert server_options(parse(["m"]))["api_keys"] == ["of the environment"]
    assert server_options(parse(["m", "--api-key", "a", "b"]))["api_keys"] == ["a", "b"]
    monkeypatch.delenv("TRTSPEC_API_KEY")
    assert server_options(parse(["m"]))["api_keys"] == []
