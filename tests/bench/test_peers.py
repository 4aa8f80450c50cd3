"""Peers: the protocol with a worker, its failures, and the ratios; the engine is a script."""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trtspec.bench.peers import contender as contenders
from trtspec.bench.peers import process
from trtspec.bench.peers.contender import (
    OURS,
    Contender,
    MeasuredRound,
    Peer,
    contenders_of,
    installed_peers,
    read_peers,
)
from trtspec.bench.peers.process import Job, PeerError, PeerProcess
from trtspec.bench.peers.report import print_point, summarize
from trtspec.bench.peers.round import run_round
from trtspec.bench.peers.workers.engines import ENGINES
from trtspec.errors import ConfigError
from trtspec.speculative.registry import methods

JOB = Job("model", "plain", max_seq_len=64)
PROMPTS = [[1, 2], [3]]

COUNTING = """
from protocol import main, one_by_one

def load(job):
    print("an engine that talks")
    if job.mode == "refused":
        raise ValueError("no such model: " + job.model)
    def answer(ids, max_tokens, seed):
        if job.mode == "dies":
            import os
            os.write(2, b"out of memory")
            os._exit(9)
        if job.mode == "hangs":
            import time
            time.sleep(60)
        count = max_tokens - (job.mode == "short") + (job.mode == "long")
        return [ids[-1] + seed + i for i in range(count)]
    return "1.0", one_by_one(answer)

main(load)
"""


@pytest.fixture(autouse=True)
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(process.WORKERS / "protocol.py", tmp_path)
    (tmp_path / "counting_worker.py").write_text(COUNTING)
    monkeypatch.setattr(process, "WORKERS", tmp_path)


def test_answers_prompt_after_prompt() -> None:
    with PeerProcess("counting", JOB) as peer:
        assert peer.version == "1.0"
        for seed in (0, 5):
            seconds, tokens = peer.generate(PROMPTS, 3, seed)
            assert seconds >= 0
            assert tokens == [[2 + seed, 3 + seed, 4 + seed], [3 + seed, 4 + seed, 5 + seed]]
    assert peer._process.returncode == 0
    peer.close()


def test_a_text_ends_in_front_of_its_stop_token() -> None:
    """Whether the engine gives that token, something behind it, or neither; more is refused."""
    for mode, stop_ids, expected in (
        ("plain", [4], [[2, 3], [3]]),
        ("short", [9], [[2, 3], [3, 4]]),
        ("long", [5], [[2, 3, 4], [3, 4]]),
    ):
        with PeerProcess("counting", replace(JOB, mode=mode, stop_ids=stop_ids)) as peer:
            assert peer.generate(PROMPTS, 3, 0)[1] == expected
    with (
        pytest.raises(PeerError, match=r"\[4, 4\] with another number"),
        PeerProcess("counting", replace(JOB, mode="long", stop_ids=[99])) as peer,
    ):
        peer.generate(PROMPTS, 3, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("refused", "ValueError: no such model: model"),
        ("dies", "ended with status 9: .*out of memory"),
        ("short", r"\[2, 2\] with another number of tokens than 3"),
        ("long", r"\[4, 4\] with another number of tokens than 3"),
        ("hangs", "took more than 2 s"),
    ],
)
def test_failures_say_what_the_engine_said(mode: str, message: str) -> None:
    with (
        pytest.raises(PeerError, match=message),
        PeerProcess("counting", replace(JOB, mode=mode), limit=2) as peer,
    ):
        peer.generate(PROMPTS, 3, 0)


def test_an_interpreter_that_is_none() -> None:
    with pytest.raises(PeerError, match="cannot be run"):
        PeerProcess("counting", JOB, python="/nowhere/python")


def test_read_peers(tmp_path: Path) -> None:
    peers = read_peers([f"transformers={sys.executable}"], [], "folder")
    assert peers == [Peer("transformers", sys.executable)]
    for spellings, models, message in (
        (["tensorflow"], [], "not one of transformers"),
        (["vllm=/nowhere/python"], [], "cannot import vllm; install it in an environment"),
        ([], ["vllm"], "is not name=path"),
        ([], ["openvino.tokenizer=x"], "is not name=path"),
        ([], ["openvino=/nowhere"], "there is no /nowhere"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_peers(spellings, models, "folder")


def test_an_own_format_must_be_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(contenders, "_can_import", lambda peer: True)
    with pytest.raises(ConfigError, match="optimum-cli export openvino"):
        read_peers(["openvino"], [], "folder")
    models = [f"openvino={tmp_path}", f"openvino.eagle3={tmp_path}"]
    (peer,) = read_peers(["openvino"], models, "folder")
    found = contenders_of(peer, JOB, {"draft_model": "hf-draft"}, [4])
    # No draft in its own format: the Hugging Face one is of no use to it.
    assert [c.mode for c in found] == ["plain", "prompt_lookup:4", "eagle3:4"]
    assert {c.job.model for c in found} == {str(tmp_path)}
    assert found[2].job.draft == str(tmp_path)


def test_gguf_files_go_to_those_that_read_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contenders, "_can_import", lambda peer: True)
    with pytest.raises(ConfigError, match=r"vllm cannot read m\.gguf: it reads a format"):
        read_peers(["vllm"], [], "/models/m.gguf")
    assert [peer.name for peer in installed_peers("m.GGUF")] == ["openvino", "xllamacpp"]
    job = replace(JOB, model="m.gguf")
    (peer,) = read_peers(["xllamacpp"], [], "m.gguf")
    found = contenders_of(peer, job, {"draft_model": "d.gguf", "eagle3": "head"}, [4])
    assert [(c.mode, c.job.model, c.job.draft) for c in found] == [
        ("plain", "m.gguf", None),
        ("prompt_lookup:4", "m.gguf", None),
        ("draft_model:4", "m.gguf", "d.gguf"),
    ]


def test_what_a_peer_can_do_with_these_drafts() -> None:
    found = contenders_of(Peer("vllm"), JOB, {"eagle3": "head"}, [4, 8])
    assert [(c.name, c.job.mode, c.job.draft, c.job.num_draft_tokens) for c in found] == [
        ("vLLM plain", "plain", None, 0),
        ("vLLM prompt_lookup:4", "prompt_lookup", None, 4),
        ("vLLM prompt_lookup:8", "prompt_lookup", None, 8),
        ("vLLM eagle3:4", "eagle3", "head", 4),
        ("vLLM eagle3:8", "eagle3", "head", 8),
    ]
    wanted = contenders_of(Peer("vllm"), JOB, {"eagle3": "head"}, [4], ["plain", "eagle3"])
    assert [c.mode for c in wanted] == ["plain", "eagle3:4"]


def test_drafts_of_others_are_those_of_our_methods() -> None:
    taken = {mode for engine in ENGINES.values() for mode in engine.draft_modes}
    assert taken and taken <= set(methods())


def counting(mode: str = "plain") -> Contender:
    return Contender("counting", mode, "counting", sys.executable, replace(JOB, mode=mode))


def test_a_round_of_turns() -> None:
    """Seeds go by prompts, however many make a turn; what fails leaves the others alone."""
    failed: list[Contender] = []
    one, other, broken, dying = counting(), counting(), counting("refused"), counting("dies")
    found = [one, broken, dying, other]
    run_round(found, PROMPTS, 3, 5, 1, 1, lambda who, error: failed.append(who))
    run_round([one], PROMPTS, 3, 5, 1, 2, lambda who, error: failed.append(who))
    assert failed == [broken, dying]
    assert [len(c.rounds) for c in found] == [2, 0, 0, 1]
    assert one.version == "1.0" and all(r.first_seconds is not None for r in one.rounds)
    assert [len(r.turn_seconds) for r in one.rounds] == [2, 1]
    # The second prompt is drawn with seed 6; that worker gives the prompts of a call one seed.
    assert other.rounds[-1].tokens == [[7, 8, 9], [9, 10, 11]]
    assert one.rounds[-1].tokens == [[7, 8, 9], [8, 9, 10]]


def test_without_prefills_each_text_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    generate = PeerProcess.generate

    def count(peer: PeerProcess, prompts: Any, max_tokens: int, seed: int) -> Any:
        asked.append(max_tokens)
        return generate(peer, prompts, max_tokens, seed)

    monkeypatch.setattr(PeerProcess, "generate", count)
    one = counting()
    run_round([one], PROMPTS, 3, 0, 2, 1, lambda who, error: None, times_prefills=False)
    assert asked == [2, 3, 3] and one.rounds[0].decode_speed is None


def test_decode_alone() -> None:
    one = MeasuredRound([[1] * 5, [2] * 5], [1.0, 2.0], 1.0)
    assert one.speed == 10 / 3 and one.decode_speed == 8 / 2


def test_rounds_and_ratios() -> None:
    def of(engine: str, mode: str, seconds: list[float], first: int = 1) -> Contender:
        tokens = [[first] * 4, [2] * 4]
        rounds = [MeasuredRound(tokens, [each / 4, each * 3 / 4], 0.0) for each in seconds]
        return Contender(engine, mode, "", "", JOB, "1", rounds)

    found = [
        of(OURS, "plain", [1.0, 9.0, 1.0]),
        of(OURS, "ngram:4", [0.25, 0.25, 4.0]),
        of("a", "plain", [2.0, 2.0, 2.0], first=7),
        of("b", "prompt_lookup", [0.5, 0.5, 0.5]),
    ]
    point = summarize(1, 0.0, found)
    assert point["ratios"] == {
        "best_over_plain": 4.0,
        "plain_over_best_plain": 2.0,
        "best_over_best": 2.0,
    }
    assert [line["num_divergences"] for line in point["contenders"]] == [0, 0, 1, 0]
    assert [line["speed_up"] for line in point["contenders"]] == [1.0, 4.0, 0.5, 2.0]
    drawn = summarize(1, 1.0, found)
    assert [line["num_divergences"] for line in drawn["contenders"]] == [0, 0, None, None]
    assert "plain_over_best_plain" not in summarize(1, 0.0, found[:2])["ratios"]


def test_by_kind_and_failures(capsys: pytest.CaptureFixture[str]) -> None:
    """A kind's speed-up is over our plain decoding; who failed has a line that says why."""

    def of(engine: str, mode: str, seconds: list[float]) -> Contender:
        rounds = [MeasuredRound([[1] * 4, [2] * 4], seconds)]
        return Contender(engine, mode, "", "", JOB, "1", rounds)

    broken = Contender("b", "draft_model:4", "", "", JOB, failure="reads no such file")
    found = [of(OURS, "plain", [1.0, 2.0]), of("a", "plain", [2.0, 1.0]), broken]
    point = summarize(1, 0.0, found, ["write", "edit"])
    assert [line.get("categories") for line in point["contenders"]] == [
        {
            "write": {"tokens_per_second": 4.0, "speed_up": 1.0},
            "edit": {"tokens_per_second": 2.0, "speed_up": 1.0},
        },
        {
            "write": {"tokens_per_second": 2.0, "speed_up": 0.5},
            "edit": {"tokens_per_second": 4.0, "speed_up": 2.0},
        },
        None,
    ]
    assert point["ratios"]["best_over_best"] == 1.0
    assert point["contenders"][2] == {
        "engine": "b", "mode": "draft_model:4", "version": "", "num_prompts": 2,
        "failure": "reads no such file",
    }  # fmt: skip
    print_point(point)
    out = capsys.readouterr().out
    assert re.search(r"^.*b .*draft_model:4 .*reads no such file", out, re.M)
    assert re.search(r"^.*edit .*1\.00 .*2\.00", out, re.M)
