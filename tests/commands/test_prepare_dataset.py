"""trtspec-bench prepare-dataset: texts and random tokens as samples of trtspec_benchmark."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from trtspec.bench.data.dataset import held_out_prompts
from trtspec.builder.locate import find_model
from trtspec.commands.bench import main

from ..e2e.tiny_tokenizer import save_words

WORDS = 50


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("words")
    save_words(folder, [f"w{i}" for i in range(WORDS)])
    return folder


def prepare(output: Path, *flags: Any) -> list[dict[str, Any]]:
    assert main(["prepare-dataset", "--output", str(output), *map(str, flags)]) == 0
    if output.suffix == ".jsonl":
        return [json.loads(line) for line in output.read_text().splitlines()]
    samples: list[dict[str, Any]] = json.loads(output.read_text())["samples"]
    return samples


def test_texts(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "prompts.txt"
    text.write_text("w1 w2 w3\n\nw4 w5\nw6 w7 w8 w9\nw10\n")
    tokenizer = AutoTokenizer.from_pretrained(model)
    flags = ("--tokenizer", model, "--dataset", text, "--input_len", 3, "--output_len", 9)
    samples = prepare(tmp_path / "out.json", *flags)
    expected = [tokenizer(line)["input_ids"][:3] for line in ("w1 w2 w3", "w4 w5", "w6 w7 w8")]
    assert [sample["input_ids"] for sample in samples[:3]] == expected and len(samples) == 4
    assert all(sample["output_len"] == 9 and sample["task_id"] == -1 for sample in samples)
    metadata = json.loads((tmp_path / "out.json").read_text())["metadata"]
    assert (metadata["num_samples"], metadata["max_input_len"]) == (4, 3)
    total = sum(len(sample["input_ids"]) for sample in samples)
    assert f"4 samples, {total} input and 36 output tokens" in capsys.readouterr().out
    # The same as one sample a line, and some of them at even distances.
    assert prepare(tmp_path / "out.jsonl", *flags) == samples
    assert prepare(tmp_path / "two.jsonl", *flags, "--num-samples", 2) == samples[::2]


def test_json_lines(model: Path, tmp_path: Path) -> None:
    data = tmp_path / "prompts.jsonl"
    data.write_text('{"prompt": "w8 w9"}\n{"turns": ["w3 w4"]}\n')
    flags = ("--model", model, "--dataset", data, "--num_samples", 0)
    samples = prepare(tmp_path / "out.json", *flags)
    assert len(samples) == 2 and samples[0]["output_len"] == 128


@pytest.mark.slow
def test_standard_library(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(find_model("trtspec-tiny"))
    samples = prepare(tmp_path / "out.json", "--num_requests", 3, "--input_len", 20)
    expected = [prompt.token_ids for prompt in held_out_prompts(tokenizer, 3, 20)]
    assert [sample["input_ids"] for sample in samples] == expected


def test_random_tokens(model: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model)
    allowed = set(range(len(tokenizer))) - set(tokenizer.all_special_ids)
    flags = ("--tokenizer", model, "--num-requests", 300)
    normal = (
        "--input-mean", 40, "--input-stdev", 5, "--output-mean", 7,
    )  # fmt: skip
    samples = prepare(tmp_path / "norm.json", "token-norm-dist", *flags, *normal)
    lengths = [len(sample["input_ids"]) for sample in samples]
    assert abs(statistics.mean(lengths) - 40) < 1.5 and 4 < statistics.stdev(lengths) < 6
    assert {sample["output_len"] for sample in samples} == {7}
    assert {token for sample in samples for token in sample["input_ids"]} == allowed
    uniform = (
        "--input-min", 3, "--input-max", 6, "--output-min", 1, "--output-max", 2, "--seed", 5,
    )  # fmt: skip
    samples = prepare(tmp_path / "unif.json", "token-unif-dist", *flags, *uniform)
    assert {len(sample["input_ids"]) for sample in samples} == {3, 4, 5, 6}
    assert {sample["output_len"] for sample in samples} == {1, 2}
    assert prepare(tmp_path / "again.json", "token-unif-dist", *flags, *uniform) == samples
    other = (*uniform[:-1], 6)
    assert prepare(tmp_path / "other.json", "token-unif-dist", *flags, *other) != samples


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--num_samples", 0), ("--num_samples 0", "at least 1")),
        (("--input_len", 0), ("--input_len 0", "at least 1")),
        (("--output_len", -1), ("--output_len -1", "at least 1")),
        (("--input_len", 10**6), ("stdlib has 0", "1000000")),
        (("--dataset", "absent.txt"), ("absent.txt", "cannot be read")),
        (("--input_mean", 3), ("--input_mean", "token-norm-dist")),
        (("token-norm-dist", "--input_len", 3), ("--input_len", "text")),
        (("token-norm-dist", "--input_mean", 3), ("--output_mean",)),
        (("token-norm-dist", "--input_mean", 0, "--output_mean", 1), ("0", "at least 1")),
        (
            ("token-norm-dist", "--input_mean", 9, "--input_stdev", -1, "--output_mean", 1),
            ("-1", "negative"),
        ),
        (
            ("token-unif-dist", "--input_min", 5, "--input_max", 4, "--output_min", 1,
             "--output_max", 2),
            ("5 to 4",),
        ),
        (("token-unif-dist", "--input_min", 5), ("--input_max",)),
        (("--model", "a", "--tokenizer", "b"), ("--tokenizer", "--model")),
    ],
    ids=str,
)  # fmt: skip
def test_refused(
    flags: tuple[Any, ...],
    named: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = tmp_path / "out.json"
    assert main(["prepare-dataset", "--output", str(output), *map(str, flags)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("trtspec-bench: ") and error.count("\n") == 1
    assert all(part in error for part in named), error
    assert not output.exists()


def test_no_folder(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "absent" / "out.json"
    text = tmp_path / "prompts.txt"
    text.write_text("w1\n")
    flags = ("--model", str(model), "--dataset", str(text), "--output", str(output))
    assert main(["prepare-dataset", *flags]) == 1
    assert str(output) in capsys.readouterr().err
