"""trtspec-bench: acceptance over a file, and errors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from trtspec.commands.bench import main

from ..e2e.helpers import TinyModels
from ..e2e.parallel_drafts import random_p_eagle
from ..e2e.tiny_tokenizer import save_words
from ..models.tiny_hf import VOCAB

CHAIN = ("--method", "draft_model", "--num_speculative_tokens", "3")


@pytest.fixture(scope="module")
def pair(models: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target and a draft with tokenizers."""
    folders = models.folder("llama"), models.draft("llama")
    pair = []
    for folder in folders:
        copy = tmp_path_factory.mktemp("pair") / folder.name
        copy.mkdir()
        for file in folder.iterdir():
            (copy / file.name).write_bytes(file.read_bytes())
        save_words(copy, [f"w{i}" for i in range(VOCAB)])
        pair.append(copy)
    return pair[0], pair[1]


def acceptance(model: Path, *more: str) -> list[str]:
    return [
        "acceptance", "--model", str(model), "--backend", "eager", "--dtype", "float32",
        "--max_tokens", "12", "--ignore_eos", *more,
    ]  # fmt: skip


def test_acceptance_over_questions(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, output = tmp_path / "question.jsonl", tmp_path / "result.json"
    entry = {"question_id": 7, "category": "writing", "turns": ["w5 w90 w17 w3 w44"]}
    data.write_text("\n".join([json.dumps(entry), '{"prompt": "w8 w9 w80"}'] * 3))
    flags = [*CHAIN, "--draft", str(pair[1]), "--dataset", str(data), "--output", str(output)]
    assert main(acceptance(pair[0], *flags, "--num_prompts", "4", "--batch_size", "2")) == 0
    out = capsys.readouterr().out
    result = json.loads(output.read_text())
    metrics = result["metrics"]
    assert f"num_accepted_tokens: {metrics['num_accepted_tokens']}\n" in out
    assert "total_num_output_tokens: 48\n" in out and "acceptance at token 2: " in out
    assert result["total_num_output_tokens"] == 48 and len(result["requests"]) == 4
    assert result["speculative_config"]["method"] == "draft_model"
    assert result["requests"][0]["category"] == "writing"


@pytest.mark.parametrize("method", ["pard", "p_eagle"])
def test_acceptance_of_parallel_drafts(
    models: TinyModels,
    pair: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    method: str,
) -> None:
    (tmp_path / "text.txt").write_text("w4 w5 w6 w4 w5 w6 w4 w5\n")
    draft = tmp_path / "draft"
    if method == "pard":
        shutil.copytree(pair[1], draft)
        config = json.loads((draft / "config.json").read_text())
        (draft / "config.json").write_text(json.dumps(config | {"pard_token": 9}))
    else:
        random_p_eagle(models.hf("llama"), draft, None, layers=1)
    flags = ["--method", method, "--draft", str(draft), "--num_speculative_tokens", "2"]
    assert main(acceptance(pair[0], *flags, "--dataset", str(tmp_path / "text.txt"))) == 0
    assert "acceptance at token 1: " in capsys.readouterr().out


def test_the_whole_method_as_json(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.txt").write_text("w4 w5 w6 w4 w5 w6 w4 w5\n")
    config = '{"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_min": 1}'
    flags = ["--speculative_config", config, "--dataset", str(tmp_path / "text.txt")]
    assert main(acceptance(pair[0], *flags)) == 0
    out = capsys.readouterr().out
    assert "acceptance at token 1: " in out and "acceptance at token 2: " not in out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "no speculative method is named"),
        (("--method", "ngram"), "max_draft_len"),
        (("--method", "telepathy", "--num_speculative_tokens", "2"), "unknown speculative method"),
        (("--speculative_config", "{"), "--speculative_config is not JSON"),
        (("--speculative_config", "[]"), "must be None, a mapping"),
        (("--speculative_config", "{}", "--topk", "2"), "leave out topk"),
        (("--method", "ngram", "--num_speculative_tokens", "2"), "none.jsonl cannot be read"),
    ],
)
def test_errors_take_one_line(
    pair: tuple[Path, Path],
    tmp_path: Path,
    flags: tuple[str, ...],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = ("--dataset", str(tmp_path / "none.jsonl"))
    assert main(acceptance(pair[0], *flags, *data)) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("trtspec-bench: ")
    assert message in captured.err and len(captured.err.splitlines()) == 1


def test_bad_lines_and_outputs_are_found_before_an_engine_is_built(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "set.jsonl"
    data.write_text('{"prompt": "a"}\n{"prompt": \n')
    flags = ["--method", "ngram", "--num_speculative_tokens", "2", "--dataset", str(data)]
    assert main(acceptance(pair[0], *flags)) == 1
    error = capsys.readouterr().err
    assert f"{data}, line 2 is not JSON" in error and "plan" not in error
    assert main(acceptance(pair[0], *flags, "--output", str(tmp_path / "no" / "x.json"))) == 1
    assert f"there is no folder {tmp_path / 'no'}" in capsys.readouterr().err
    assert main(acceptance(pair[0], *flags, "--num_prompts", "-1")) == 1
    assert "--num_prompts -1 must be at least 0" in capsys.readouterr().err
