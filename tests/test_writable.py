"""Nothing is written before all that it needs was checked, and what cannot be written is said so
before any work is done."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trtspec import LLM
from trtspec.builder.scratch import scratch_folder
from trtspec.commands import bench, build
from trtspec.errors import CheckpointError
from trtspec.writable import check_file, check_folder


def everything(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def test_a_check_leaves_no_trace(tmp_path: Path) -> None:
    check_folder(tmp_path)
    check_folder(tmp_path / "new" / "deep")
    check_file(tmp_path / "new.json")
    (tmp_path / "old.json").write_text("old")
    check_file(tmp_path / "old.json")
    assert everything(tmp_path) == ["old.json"]


@pytest.mark.parametrize(
    "place", ["file/deep", "file", "/proc/nowhere", "/proc/nowhere/deep", "/dev/null/deep"]
)
def test_where_no_folder_can_be(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError):
        check_folder(tmp_path / place)
    assert everything(tmp_path) == ["file"]


PLACES = ["file/x", "missing/x", "folder", "/proc/x"]


@pytest.mark.parametrize("place", PLACES)
def test_where_no_file_can_be(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        check_file(tmp_path / place)
    assert everything(tmp_path) == ["file", "folder"]


COMMANDS = {
    "acceptance": ["acceptance", "--method", "ngram", "--num_speculative_tokens", "2"],
    "compare": ["compare"],
    "compare plot": ["compare"],
    "forward": ["forward"],
    "peers": ["peers"],
    "prepare-dataset": ["prepare-dataset", "token-norm-dist", "--input_mean", "3"],
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", COMMANDS)
def test_commands_find_out_first(
    name: str,
    place: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither a tokenizer nor a checkpoint is read, and nothing is built."""

    def too_late(*args: object, **options: object) -> None:
        raise AssertionError("work began")

    for path in (
        "trtspec.commands.bench.LLM",
        "trtspec.commands.bench_compare.available_drafts",
        "trtspec.commands.bench_peers.installed_peers",
        "trtspec.commands.bench_forward.measure_machine",
        "trtspec.commands.bench_prepare.load_tokenizer",
    ):
        monkeypatch.setattr(path, too_late)
    is_plot = name.endswith("plot")
    if is_plot:
        pytest.importorskip("matplotlib")
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder.svg").mkdir()
    before = everything(tmp_path)
    flag = "--plot" if is_plot else "--output"
    path = str(tmp_path / place) + (".svg" if is_plot else "")
    assert bench.main([*COMMANDS[name], flag, path]) == 1
    assert "cannot be written" in capsys.readouterr().err
    assert everything(tmp_path) == before


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    """Neither the folder of hidden states nor that of the engine is made."""
    config = {
        "method": "extract_hidden_states",
        "capture_layers": [0],
        "shared_storage_path": str(tmp_path / "states" / "deep"),
    }
    with pytest.raises(CheckpointError):
        LLM(tmp_path / "no" / "model", config)
    folder = str(tmp_path / "engines" / "one")
    assert build.main(["--checkpoint_dir", str(tmp_path / "no"), "--output_dir", folder]) == 1
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_scratch_folders_take_their_parents_along(tmp_path: Path, fails: bool, known: bool) -> None:
    parent = tmp_path / "a" / "b"
    if known:
        parent.mkdir(parents=True)
    try:
        with scratch_folder(parent / "engine") as scratch:
            (scratch / "weights").touch()
            if fails:
                raise KeyError
            scratch.rename(parent / "engine")
    except KeyError:
        pass
    kept = ["a", "a/b"] if known or not fails else []
    built = [] if fails else ["a/b/engine", "a/b/engine/weights"]
    assert everything(tmp_path) == kept + built
