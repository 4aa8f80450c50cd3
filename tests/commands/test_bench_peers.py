"""trtspec-bench peers: what the flags make of contenders, and what becomes of one that fails."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoTokenizer

from trtspec.bench.peers import contender as contenders
from trtspec.bench.peers.contender import Contender, MeasuredRound
from trtspec.bench.peers.process import PeerError
from trtspec.bench.runs.methods import BenchMethod
from trtspec.builder.available_drafts import FoundDraft
from trtspec.commands import bench, bench_peers

from ..e2e.tiny_tokenizer import save_bytes


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Contender]:
    """The contenders of a run over GGUF files, in which nothing is built or started; llama.cpp
    fails with a draft."""
    save_bytes(tmp_path, 300)
    target = SimpleNamespace(eos_token_ids=(0,), vocab_size=300)
    engine = SimpleNamespace(build=SimpleNamespace(dtype="float32"), target=target)
    found: list[Contender] = []

    def run_round(group: Sequence[Contender], prompts: Sequence[list[int]], *rest: Any) -> None:
        fail: Callable[..., None] = next(each for each in rest if callable(each))
        for each in list(group):
            found.append(each)
            if each.job.draft is not None:
                fail(each, PeerError("no such\nfile"))
            else:
                each.rounds.append(MeasuredRound([[1, 2]] * len(prompts), [1.0] * len(prompts)))

    draft = FoundDraft("d.gguf", "draft_model", None)  # type: ignore[arg-type]
    fakes = {
        "find_model": Path,
        "available_drafts": lambda model, given: [draft],
        "build_methods": lambda args, drafts: ([BenchMethod("none", None)], {"none": tmp_path}, {}),
        "EngineConfig": SimpleNamespace(read=lambda folder: engine),
        "load_tokenizer": lambda folder: AutoTokenizer.from_pretrained(tmp_path),
        "further_ends": lambda tokenizer, model: {7: "<end>"},
        "run_round": run_round,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(bench_peers, name, fake)
    monkeypatch.setattr(contenders, "_can_import", lambda peer: True)
    return found


def test_a_pair_by_kind(
    measured: list[Contender], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Texts end where the model ends them, unless told not to; a failure is a line."""
    prompts = tmp_path / "prompts.jsonl"
    entries = [{"kind": "edit", "prompt": "Rename f."}, {"kind": "chat", "prompt": "Why?"}]
    prompts.write_text("\n".join(map(json.dumps, entries)))
    flags = ["peers", "--model", "t.gguf", "--prompts", str(prompts), "--rounds", "1"]
    output = tmp_path / "result.json"
    assert bench.main([*flags, "--peers", "xllamacpp", "--output", str(output)]) == 0
    assert [(c.name, c.job.model, c.job.draft) for c in measured] == [
        ("trtspec plain", str(tmp_path), None),
        ("llama.cpp plain", "t.gguf", None),
        ("llama.cpp prompt_lookup:4", "t.gguf", None),
        ("llama.cpp draft_model:4", "t.gguf", "d.gguf"),
    ]
    assert {tuple(c.job.stop_ids) for c in measured} == {(0, 7)}
    result = json.loads(output.read_text())
    assert result["note"] == "2 prompts, 128 new tokens at most, 1 round(s)"
    lines = result["points"][0]["contenders"]
    assert lines[1]["categories"]["edit"] == {"tokens_per_second": 2.0, "speed_up": 1.0}
    assert lines[3]["failure"] == "no such file" and "speed_up" not in lines[3]
    assert "llama.cpp draft_model:4 failed: no such file\n" in capsys.readouterr().out
    measured.clear()
    assert bench.main([*flags, "--peers", "xllamacpp", "--ignore_eos"]) == 0
    assert {tuple(c.job.stop_ids) for c in measured} == {()}


def test_kinds_are_told_apart_where_models_do_not_fit_together(
    measured: list[Contender], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One at a time, but still prompt by prompt."""
    sizes: list[tuple[int, int]] = []

    def run_round(group: Sequence[Contender], prompts: Sequence[list[int]], *rest: Any) -> None:
        sizes.append((len(group), rest[3]))
        group[0].rounds.append(MeasuredRound([[1]] * len(prompts), [1.0] * len(prompts)))

    monkeypatch.setattr(bench_peers, "run_round", run_round)
    counted: list[int] = []
    monkeypatch.setattr(bench_peers, "fit_together", lambda size, device: counted.append(size))
    target = tmp_path / "models" / "t.gguf"
    target.parent.mkdir()
    target.write_bytes(bytes(1000))
    ours = sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file())
    flags = ["peers", "--model", str(target), "--num_prompts", "2", "--rounds", "1"]
    assert bench.main([*flags, "--peers", "xllamacpp", "--peer_methods", "plain"]) == 0
    assert sizes == [(1, 1), (1, 1)]
    assert counted == [ours + 2 * 1000]  # llama.cpp packs a copy of what it maps


def test_our_own_failure_is_an_error(
    measured: list[Contender], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(group: Sequence[Contender], *rest: Any) -> None:
        fail: Callable[..., None] = next(each for each in rest if callable(each))
        fail(group[0], PeerError("our worker ended"))

    monkeypatch.setattr(bench_peers, "run_round", fails)
    assert bench.main(["peers", "--model", "t.gguf", "--peers", "--num_prompts", "1"]) == 1
    assert "our worker ended" in capsys.readouterr().err
