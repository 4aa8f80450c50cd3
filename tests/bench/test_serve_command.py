"""trtspec-bench serve, compare-serve and plot-serve, as they are called."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from trtspec.commands.bench import main

from .fake_openai import Exchange, FakeServer, fake_server, well

Captured = pytest.CaptureFixture[str]


def serve(server: FakeServer, *flags: str) -> list[str]:
    return [
        "serve", "--base-url", server.url, "--dataset", "random", "--num-prompts", "4",
        "--max-tokens", "8", "--no-progress", *flags,
    ]  # fmt: skip


def test_a_run_prints_and_saves(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "r.json"
    flags = ["--output", str(path), "--api-key", "s3cret", "--warmup", "2", "--ignore-eos"]
    with fake_server() as server:
        assert main(serve(server, *flags, "--max-concurrency", "2", "--seed", "5")) == 0
    out = capsys.readouterr().out
    assert f"fake-1 at {server.url}/v1/completions: 4 prompts of random" in out
    assert " all at once, 2 at a time " in out
    result = json.loads(path.read_text())
    assert result["server"] == {"url": server.url, "model": "fake-1", "version": "9.9"}
    assert result["load"]["seed"] == 5 and result["load"]["dataset"] == "random"
    (point,) = result["points"]
    assert (point["completed"], point["total_output_tokens"]) == (4, 16)
    assert [request["index"] for request in point["requests"]] == [0, 1, 2, 3]
    assert len(server.exchanges) == 6 and server.most <= 2
    last = server.exchanges[-1]
    assert last.headers["authorization"] == "Bearer s3cret"
    assert last.body["ignore_eos"] is True and last.body["max_tokens"] == 8
    assert "s3cret" not in path.read_text() and "--api-key '***'" in result["command"]


@pytest.mark.slow
def test_a_sweep_compared_and_drawn(tmp_path: Path, capsys: Captured) -> None:
    pytest.importorskip("matplotlib")
    a, b, c, drawn = (tmp_path / name for name in ("a.json", "b.json", "c.json", "all.png"))
    with fake_server() as server:
        rates = ["--request-rate", "100", "200"]
        assert main(serve(server, *rates, "--output", str(a), "--plot", str(drawn))) == 0
        out = capsys.readouterr().out
        assert "100 req/s" in out and out.count("Successful requests:") == 2
        assert out.splitlines()[-3].startswith("load ")
        drawn.unlink()
        assert main(serve(server, *rates, "--output", str(b), "--model", "x")) == 0
        assert main(serve(server, "--output", str(c))) == 0
    prompts = [exchange.text for exchange in server.exchanges[1:9]]
    assert len(set(prompts)) == 8  # each point its own
    capsys.readouterr()

    assert main(["compare-serve", str(a), str(b)]) == 0
    out = capsys.readouterr().out
    assert "The same text in 4 of the 4 requests" in out and "x at http" in out
    assert main(["compare-serve", str(a), str(c)]) == 1
    error = capsys.readouterr().err
    assert "cannot be compared" in error and "100 req/s; 200 req/s and all at once" in error

    assert main(["plot-serve", str(a), str(b), "--output", str(drawn)]) == 0
    assert drawn.read_bytes().startswith(b"\x89PNG")
    assert main(["plot-serve", str(a), str(b), "--output", str(drawn), "--labels", "x"]) == 1
    assert "2 files need as many --labels" in capsys.readouterr().err


def test_the_key_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "from-env")
    with fake_server() as server:
        assert main(serve(server, "--warmup", "0")) == 0
    assert server.exchanges[0].headers["authorization"] == "Bearer from-env"
    assert len(server.exchanges) == 4


def test_chats_of_a_file_and_more_fields(tmp_path: Path) -> None:
    data = tmp_path / "question.jsonl"
    data.write_text('{"question_id": 1, "category": "a", "turns": ["hi", "x"]}\n{"prompt": "p"}\n')
    extra = '{"top_p": 0.5, "stream_options": null}'
    with fake_server() as server:
        flags = ["--dataset", str(data), "--num-prompts", "0", "--warmup", "0"]
        chat = ["--endpoint", "/v1/chat/completions", "--extra-body", extra]
        assert main(serve(server, *flags, *chat, "--max-concurrency", "1")) == 0
    assert server.texts == ["hi", "p"]
    body = server.exchanges[0].body
    assert body["top_p"] == 0.5 and "stream_options" not in body and body["stream"] is True


def test_when_nothing_succeeds(tmp_path: Path, capsys: Captured) -> None:
    async def refuse(exchange: Exchange) -> None:
        await exchange.reply(401, '{"error": {"message": "no such key"}}')

    with fake_server(refuse) as server:
        assert main(serve(server, "--output", str(tmp_path / "r.json"))) == 1
    captured = capsys.readouterr()
    assert "4 failed: HTTP 401: no such key" in captured.out
    assert "trtspec-bench: no request succeeded" in captured.err
    assert json.loads((tmp_path / "r.json").read_text())["points"][0]["failed"] == 4


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--num-prompts", "-1"), "num_prompts -1 must be at least 1"),
        (("--num-prompts", "0"), "--num-prompts 0 needs a file"),
        (("--dataset", "none.jsonl"), "none.jsonl cannot be read"),
        (("--warmup", "-1"), "--warmup -1"),
        (("--timeout", "0"), "--timeout 0.0"),
        (("--timeout", "inf"), "--timeout inf"),
        (("--request-rate", "-2"), "request_rate -2.0"),
        (("--extra-body", "{"), "--extra-body is not JSON"),
        (("--extra-body", "[]"), "--extra-body holds a list"),
        (("--output", "no/such/r.json"), "there is no folder no/such"),
        (("--base-url", "localhost:8000"), "is not a URL"),
        (("--base-url", "http://127.0.0.1:1"), "no server answers at http://127.0.0.1:1"),
    ],
)
def test_errors_take_one_line(flags: tuple[str, ...], message: str, capsys: Captured) -> None:
    with fake_server() as server:
        assert main(serve(server, *flags)) == 1
    error = capsys.readouterr().err
    assert error.startswith("trtspec-bench: ") and message in error
    assert len(error.splitlines()) == 1 and not server.exchanges


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C interrupts, also in a job that a shell runs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_saves_what_there_is(tmp_path: Path, capsys: Captured) -> None:
    async def few_end(exchange: Exchange) -> None:
        if len(server.exchanges) <= 2:
            return await well(exchange)
        signal.pthread_kill(ident, signal.SIGINT)
        await asyncio.sleep(60)
        return None

    ident = threading.main_thread().ident or 0
    path = tmp_path / "r.json"
    with fake_server(few_end) as server:
        flags = ["--warmup", "0", "--max-concurrency", "1", "2", "--output", str(path)]
        assert main(serve(server, *flags)) == 130
    captured = capsys.readouterr()
    assert "trtspec-bench: interrupted" in captured.err
    assert "Interrupted: 2 requests did not end" in captured.out
    (point,) = json.loads(path.read_text())["points"]
    assert point["interrupted"] and point["completed"] == 2 and point["num_unfinished"] == 2
    assert len(server.exchanges) == 3


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_before_anything_is_measured(tmp_path: Path, capsys: Captured) -> None:
    async def interrupt(exchange: Exchange) -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        await asyncio.sleep(60)

    with fake_server(interrupt) as server:  # the warm-up request
        assert main(serve(server, "--output", str(tmp_path / "r.json"))) == 130
    assert "trtspec-bench: interrupted" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
