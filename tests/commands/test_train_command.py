"""trtspec-train: the plan, and errors in one line that leave nothing behind."""

from __future__ import annotations

import shutil
import sys
from collections import namedtuple
from pathlib import Path

import pytest
import torch

from trtspec.builder.locate import assets_root
from trtspec.commands.train import main, make_parser
from trtspec.speculative.hidden_states.files import write_hidden_states
from trtspec.speculative.registry import methods

from ..e2e.tiny_tokenizer import save_bytes
from ..train.toy_training import record

TARGET = "trtspec-tiny"


def run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, *flags: str, model: str = TARGET
) -> tuple[int, str, str]:
    """Exit status, output and errors. Nothing may be left in the folders of the run."""
    given = ["--model", model, "--output", str(tmp_path / "head"), "--state", str(tmp_path / "s")]
    status = main(["eagle3", *given, *flags])
    printed = capsys.readouterr()
    assert not (tmp_path / "head").exists() and not (tmp_path / "s").exists()
    return status, printed.out, printed.err


def test_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, tmp_path, "--dry_run", "--tokens", "50000", "--passes", "2.5")
    assert status == 0
    for words in (
        "eagle3: 2.1 M weights to train, drafts of 5", "reads layers [1, 3, 4]",
        "a question in its own chat template, from first words of", "loop (its last 48 tokens",
        "50,000 in a pass (50,000 still to be written), 2.5 passes", "min to write", "min to train",
        "memory", f"below {tmp_path / 's'}", f"output    {tmp_path / 'head'}",
    ):  # fmt: skip
        assert words in out, words


def test_methods_are_those_with_a_recipe() -> None:
    with_recipe = [name for name, method in methods().items() if method.recipe]
    assert with_recipe == ["eagle3", "dflash", "jetspec", "dspark"]
    assert "eagle3, dflash, jetspec or dspark" in make_parser().format_help()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--tokens", "0"], "--tokens 0 must be at least 1"),
        (["--passes", "0"], "--passes 0.0 must be above 0"),
        (["--depth", "17"], "--depth 17 must be between 1 and 16"),
        (["--step_tokens", "100"], "--step_tokens 100 must be at least 512"),
        (["--prompts", "p", "--from_base"], "--prompts and --from_base name different sources"),
        (["--raw_prompts"], "--raw_prompts says how --prompts are read"),
        (["--prompts", "/nowhere/p.txt"], "--prompts /nowhere/p.txt cannot be read"),
        (["--hidden_states", "/nowhere"], "no files of hidden states in /nowhere"),
        (["--model", "/nowhere"], "no model '/nowhere'"),
    ],
)
def test_bad_flags(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    status, _, err = run(capsys, tmp_path, *flags)
    assert status == 1
    assert err.startswith("trtspec-train: ") and message in err and err.count("\n") == 1


def test_methods_that_cannot_be_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["--model", TARGET, "--output", str(tmp_path / "head")]
    assert main(["ngram", *base]) == 1
    assert "a draft for ngram cannot be trained here, as NVIDIA ModelOpt has no such network" in (
        capsys.readouterr().err
    )
    assert main(["dflash", *base, "--draft_vocab_size", "100"]) == 1
    assert "uses the target's own vocabulary head" in capsys.readouterr().err


def test_output_that_exists(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "head"
    output.mkdir()
    (output / "config.json").write_text("{}")
    assert main(["eagle3", "--model", TARGET, "--output", str(output)]) == 1
    assert f"--output {output} exists and is not empty" in capsys.readouterr().err
    assert main(["eagle3", "--model", TARGET, "--output", str(output / "config.json")]) == 1
    assert "is a file" in capsys.readouterr().err


def test_prompts_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.jsonl"
    for text, message in (("\n", "holds no prompt"), ('{"text": "a"}\n', "line 1 is no prompt")):
        path.write_text(text)
        status, _, err = run(capsys, tmp_path, "--prompts", str(path))
        assert status == 1 and message in err


def test_target_without_a_chat_template(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The plan says that it is not asked questions; without any tokenizer it cannot write."""
    folder = tmp_path / "target"
    shutil.copytree(assets_root() / TARGET, folder)
    for path in folder.glob("*token*"):
        path.unlink()
    for path in folder.glob("chat_template*"):
        path.unlink()
    status, _, err = run(capsys, tmp_path, "--dry_run", model=str(folder))
    assert status == 1 and "has no tokenizer, so it cannot write" in err
    save_bytes(folder, 300, chat=False)
    status, out, _ = run(capsys, tmp_path, "--dry_run", model=str(folder))
    assert status == 0 and "from the beginning of a text, as it has no chat template" in out
    status, out, _ = run(capsys, tmp_path, "--dry_run", "--from_base")
    assert status == 0 and "from the beginning of a text, as asked" in out


def test_full_disk_is_seen_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")(2_000_000, 1_000_000, 1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    monkeypatch.setattr("trtspec.train.run.require_modelopt", lambda: None)
    status, _, err = run(capsys, tmp_path)
    assert status == 1 and "0.00 GB are free; make room, lower --tokens" in err


def test_states_of_another_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers that are missing, another width, and states in which the target finds no token."""
    monkeypatch.setattr("trtspec.train.run.require_modelopt", lambda: None)
    states = tmp_path / "states"
    record(states, [5, 6, 7])
    status, _, err = run(capsys, tmp_path, "--hidden_states", str(states))
    assert status == 1 and "training needs [1, 3, 4, 7]" in err
    for width, message in ((12, "have 12 elements, those of trtspec-tiny 256"),
                           (256, "another model's, or another checkpoint's")):  # fmt: skip
        noise = 30 * torch.randn(2, 20, 4 * width)
        for number in range(2):
            path = states / f"{number:03}.safetensors"
            path.unlink(missing_ok=True)
            write_hidden_states(path, list(range(20)), [noise[number]], [1, 3, 4, 8])
        (states / "002.safetensors").unlink(missing_ok=True)
        given = ["--model", TARGET, "--output", str(tmp_path / "head")]
        given += ["--state", str(tmp_path / "s"), "--hidden_states", str(states)]
        assert main(["eagle3", *given]) == 1
        assert message in capsys.readouterr().err
        assert not (tmp_path / "head").exists()


def test_state_of_another_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtspec.train.run.require_modelopt", lambda: None)
    state = tmp_path / "s"
    state.mkdir()
    (state / "made_for.json").write_text('{"target": "other", "fingerprint": "12"}')
    given = ["--model", TARGET, "--output", str(tmp_path / "head"), "--state", str(state)]
    assert main(["eagle3", *given]) == 1
    err = capsys.readouterr().err
    assert "holds the state of another training" in err and "target 'other', not" in err
    assert [path.name for path in state.iterdir()] == ["made_for.json"]


def test_modelopt_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Said before anything is written, with the extra that installs it."""
    monkeypatch.setitem(sys.modules, "modelopt.torch.speculative", None)
    status, _, err = run(capsys, tmp_path)
    assert status == 1 and "pip install 'trtspec[train]'" in err
