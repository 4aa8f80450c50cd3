"""trtspec-bench compare and forward, and trtspec-doctor, as they are called."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from trtspec.bench.report import floor
from trtspec.bench.report.floor import MachineRates
from trtspec.commands import bench_compare, bench_forward, doctor
from trtspec.commands.bench import main
from trtspec.commands.doctor import main as doctor_main
from trtspec.llmapi.engines import build

from ..bench.test_floor import RATES
from ..e2e.helpers import TinyModels
from ..e2e.tiny_tokenizer import save_words
from ..models.tiny_hf import VOCAB

EAGER = ("--backend", "eager", "--dtype", "float32")


@pytest.fixture(autouse=True)
def no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    def known(device: str, dtype: str) -> MachineRates:
        return MachineRates(device, dtype, 1, RATES.read_bandwidth, RATES.linear)

    for module in (bench_compare, bench_forward, doctor):
        monkeypatch.setattr(module, "measure_machine", known)
    monkeypatch.setattr(floor, "measure_bandwidth", lambda device: RATES.read_bandwidth)


@pytest.fixture(scope="module")
def pair(models: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A target and a draft with tokenizers."""
    folders = []
    for folder in (models.folder("llama"), models.draft("llama")):
        copy = tmp_path_factory.mktemp("pair") / folder.name
        copy.mkdir()
        for file in folder.iterdir():
            (copy / file.name).write_bytes(file.read_bytes())
        save_words(copy, [f"w{i}" for i in range(VOCAB)])
        folders.append(str(copy))
    return folders[0], folders[1]


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "prompts.txt"
    path.write_text("w5 w90 w17 w3 w44\nw8 w9 w80 w8 w9 w80 w8\nw1 w2 w3\n")
    return str(path)


@pytest.mark.slow
def test_compare(
    pair: tuple[str, str], prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "result.json"
    flags = ["--model", pair[0], "--drafts", pair[1], "--dataset", prompts, "--max_tokens", "10"]
    flags += ["--batch_sizes", "1", "2", "--temperatures", "0", "1", "--rounds", "2", *EAGER]
    assert main(["compare", *flags, "--output", str(output)]) == 0
    out = capsys.readouterr().out
    assert out.count("draft_model:4") == 4 and "batch 2, temperature 1" in out
    data = json.loads(output.read_text())
    assert data["command"].startswith("trtspec-bench compare --model")
    assert data["engine"]["dtype"] == "float32" and data["left_out"] == {}
    assert data["prompts"]["mean_prompt_tokens"] == 5.0
    loads = [(point["batch_size"], point["temperature"]) for point in data["points"]]
    assert loads == [(1, 0.0), (1, 1.0), (2, 0.0), (2, 1.0)]
    for point in data["points"]:
        names = [figures["name"] for figures in point["methods"]]
        assert names == ["none", "ngram:4", "suffix:8", "draft_model:4"]
        for figures in point["methods"]:
            assert figures["texts"] == {
                "is_promised": True,
                "num_prompts": 3,
                "num_divergences": 0,
                "first_divergences": {},
            }
            assert len(figures["round_seconds"]) == 2 and figures["tokens_per_second"] > 0
            parts = sum(figures[key] for key in ("target_ms", "draft_ms", "host_ms"))
            assert parts == pytest.approx(figures["step_ms"], rel=0.5)
        none, drafted = point["methods"][0], point["methods"][-1]
        assert none["speed_up"] == 1.0 and none["draft_ms"] == 0.0 < drafted["draft_ms"]
        assert drafted["weight_bytes_per_step"] > none["weight_bytes_per_step"]
        assert drafted["acceptance"]["num_accepted_tokens"] > 0


def test_compare_leaves_out_what_does_not_fit_unless_it_was_asked_for(
    models: TinyModels, prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Drafts must be shorter than the target's sliding window, of 8 tokens."""
    folder = tmp_path / "window"
    shutil.copytree(models.folder("mistral_window"), folder)
    save_words(folder, [f"w{i}" for i in range(VOCAB)])
    output = tmp_path / "result.json"
    flags = ["--model", str(folder), "--dataset", prompts, "--max_tokens", "3", "--rounds", "1"]
    assert main(["compare", *flags, *EAGER, "--output", str(output)]) == 0
    assert "suffix:8 is left out: " in capsys.readouterr().out
    data = json.loads(output.read_text())
    assert list(data["left_out"]) == ["suffix:8"]
    assert [f["name"] for f in data["points"][0]["methods"]] == ["none", "ngram:4"]
    assert main(["compare", *flags, *EAGER, "--methods", "suffix:8"]) == 1
    assert "sliding window of 8 tokens" in capsys.readouterr().err


def test_compare_an_engine_folder(
    pair: tuple[str, str], prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = {"method": "draft_model", "model": pair[1], "num_speculative_tokens": 3}
    folder = build(pair[0], spec, tmp_path / "engine", dtype="float32", backend="eager")
    output = tmp_path / "result.json"
    flags = ["--model", str(folder), "--dataset", prompts, "--max_tokens", "6", "--rounds", "1"]
    assert main(["compare", *flags, "--methods", "draft_model:3", "--output", str(output)]) == 0
    (point,) = json.loads(output.read_text())["points"]
    assert point["methods"][1]["speculative_config"]["speculative_model"] == "draft"
    capsys.readouterr()
    for other, named in (
        (("--dtype", "bfloat16"), "dtype='bfloat16' was asked for, but the engine was built with"),
        (("--max_seq_len", "9999"), "max_seq_len=9999 exceeds the 128"),
    ):
        for command in (["compare", *flags], ["forward", "--model", str(folder)]):
            assert main([*command, *other]) == 1
            assert named in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--rounds", "0"), "--rounds 0 must be at least 1"),
        (("--batch_sizes", "1", "0"), "--batch_sizes 0 must be at least 1"),
        (("--temperatures", "-1"), "temperature"),
        (("--num_prompts", "-1"), "--num_prompts -1 must be at least 0"),
        (("--output", "/no/such/x.json"), "there is no folder /no/such"),
        (("--plot", "x.docx"), "must end in one of"),
        (("--drafts", "no-such-draft"), "no-such-draft"),
        (("--methods", "medusa:3"), "medusa:3 needs a draft"),
        (("--dataset", "/no/such.jsonl"), "/no/such.jsonl cannot be read"),
    ],
)
def test_compare_refusals(
    pair: tuple[str, str],
    flags: tuple[str, ...],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before anything is built."""
    if flags[0] == "--plot":
        pytest.importorskip("matplotlib")
    assert main(["compare", "--model", pair[0], *EAGER, *flags]) == 1
    error = capsys.readouterr().err
    assert message in error and "plan" not in error and len(error.splitlines()) == 1


def test_forward(pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "forward.json"
    flags = ["--model", pair[0], "--drafts", pair[1], "--method", "draft_model:3", *EAGER]
    flags += ["--rows", "1", "4", "--rollout_rows", "2", "--batch_sizes", "1", "2"]
    flags += ["--contexts", "8", "--seconds", "0", "--output", str(output)]
    assert main(["forward", *flags]) == 0
    assert "rollout" in capsys.readouterr().out
    calls = json.loads(output.read_text())["calls"]
    shapes = [(c["kind"], c["batch"], c["rows"], c["context"]) for c in calls]
    assert shapes == [
        ("verify", 1, 1, 8),
        ("verify", 1, 4, 8),
        ("verify", 2, 1, 8),
        ("verify", 2, 4, 8),
        ("rollout", 1, 2, 8),
        ("rollout", 2, 2, 8),
        ("first step", 1, 2, 8),
        ("first step", 2, 2, 8),
    ]
    one, four, two, _, rollout, _, first_step, _ = calls
    assert one["weight_bytes"] == four["weight_bytes"] == two["weight_bytes"]
    token_bytes = one["kv_bytes"] / 9  # the context and the row itself
    assert four["kv_bytes"] == 12 * token_bytes and two["kv_bytes"] == 18 * token_bytes
    assert rollout["kv_bytes"] == 3 * 10 * token_bytes  # three passes of a draft as large
    for name in ("weight_bytes", "kv_bytes"):
        assert first_step[name] == rollout[name] / 3
    floor = 1e3 * (one["weight_bytes"] + one["kv_bytes"]) / RATES.read_bandwidth
    assert one["memory_floor_ms"] == pytest.approx(floor)
    assert one["memory_floor_share"] == pytest.approx(floor / one["ms"])
    assert four["linear_ms"] == pytest.approx(2 * one["linear_ms"])


def test_forward_of_short_sequences(pair: tuple[str, str], tmp_path: Path) -> None:
    output = tmp_path / "forward.json"
    flags = ["--model", pair[0], *EAGER, "--max_seq_len", "64", "--batch_sizes", "4"]
    flags += ["--rows", "4", "--contexts", "60", "--seconds", "0", "--output", str(output)]
    assert main(["forward", *flags]) == 0
    (call,) = json.loads(output.read_text())["calls"]
    assert (call["batch"], call["rows"], call["context"]) == (4, 4, 60)


@pytest.mark.slow
def test_forward_on_several_backends(
    pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    output = tmp_path / "forward.json"
    flags = ["--model", pair[0], "--drafts", pair[1], "--method", "draft_model:2", "--rows", "3"]
    flags += ["--rollout_rows", "2", "--contexts", "8", "--seconds", "0", "--dtype", "float32"]
    assert main(["forward", *flags, "--backend", "eager", "onnx", "--output", str(output)]) == 0
    data = json.loads(output.read_text())
    assert [engine["backend"] for engine in data["engines"]] == ["eager", "onnx"]
    eager, lowered = data["calls"][:3], data["calls"][3:]
    for calls, backend in ((eager, "eager"), (lowered, "onnx")):
        assert [(c["backend"], c["kind"]) for c in calls] == [
            (backend, "verify"),
            (backend, "rollout"),
            (backend, "first step"),
        ]
    assert [c["kv_bytes"] for c in eager] == [c["kv_bytes"] for c in lowered]
    assert capsys.readouterr().out.count("onnx") == 3


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--rows", "0"), "--rows 0 must be at least 1"),
        (("--rows", "65"), "65 rows to verify exceed the 64"),
        (("--contexts", "4000"), "4000 tokens of context exceed"),
        (("--max_seq_len", "64", "--contexts", "62", "--rows", "3"), "62 tokens of context exceed"),
        (("--method", "eagle3:2"), "eagle3:2 needs a draft"),
    ],
)
def test_forward_refusals(
    pair: tuple[str, str],
    flags: tuple[str, ...],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["forward", "--model", pair[0], *EAGER, "--seconds", "0", *flags]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_doctor(pair: tuple[str, str], prompts: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model", pair[0], "--draft", pair[1], "--methods", "draft_model:2", *EAGER]
    flags += ["--dataset", prompts, "--max_tokens", "10"]
    code = doctor_main([*flags, "--json"])
    data = json.loads(capsys.readouterr().out)
    names = [check["name"] for check in data["checks"]]
    for name in ("compiler", "instruction set", "memory speed", "target", "tokenizer"):
        assert name in names
    assert names[-4:] == [
        "draft_model:2: contract",
        "draft_model:2: top-1 agreement",
        "draft_model:2: agreement at temperature 1",
        "draft_model:2: expected speed-up",
    ]
    assert data["is_well"] == (code == 0)
    (found,) = data["pairs"]
    assert found["agreement"]["0"]["num_draft_tokens"] > 0


def test_doctor_looks_at_a_pair_without_measuring(
    pair: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert doctor_main(["--model", pair[0], "--draft", pair[1], "--no_measure", *EAGER]) == 0
    out = capsys.readouterr().out
    assert "warning  draft_model:4: contract" in out and "memory speed" not in out
    assert "a pass reads 100% of a target step" in out  # it fits, but is as large as its target


def test_doctor_finds_a_draft_that_does_not_fit(
    pair: tuple[str, str], models: TinyModels, capsys: pytest.CaptureFixture[str]
) -> None:
    other = ["--draft", "trtspec-tiny-draft", "--no_measure"]
    assert doctor_main(["--model", pair[0], *other]) == 1
    captured = capsys.readouterr()
    assert "problem  draft_model:4: contract" in captured.out
    assert "tokenizer" in captured.out and captured.err.count("Traceback") == 0
    assert doctor_main(["--model", "no-such-model", "--no_measure"]) == 1
    assert "problem  target" in capsys.readouterr().out
    assert doctor_main(["--model", pair[0], "--draft", "no-such-draft", "--no_measure"]) == 1
    assert "problem  draft " in capsys.readouterr().out
    for method in ("ngram:4", "suffix:8", "auto"):
        assert doctor_main(["--model", pair[0], "--methods", method, "--no_measure"]) == 1
        assert f"{method} drafts without a network" in capsys.readouterr().out
    assert doctor_main(["--draft", pair[1]]) == 1
    assert "need a --model" in capsys.readouterr().err
