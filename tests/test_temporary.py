"""Folders for temporary files that are unfit for compiled programs, and names of folders that
compilers' command lines break at."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from trtspec.backends.aoti import backend as aoti
from trtspec.backends.aoti.session import AotiSession
from trtspec.errors import BuildError, EngineError
from trtspec.temporary import plain_folder, temporary_trouble

NAMES = ["my project (1)", "it's", 'a "b"', "Zoë", "$HOME;x", "a:b"]


@pytest.fixture(autouse=True)
def own_temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_a_link_stands_for_a_folder(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "inside").touch()
    link = plain_folder(str(folder))
    assert shlex.split(link) == [link] and ":" not in link and link.isascii()
    assert os.listdir(link) == ["inside"]
    assert plain_folder(str(folder)) == link and plain_folder(link) == link


def test_links_of_others_are_not_followed(own_temporary: Path, tmp_path: Path) -> None:
    folder = tmp_path / "my project"
    link = Path(plain_folder(str(folder)))
    assert link.parent.parent == own_temporary
    link.unlink()
    link.symlink_to("/elsewhere")
    assert os.readlink(plain_folder(str(folder))) == str(folder)
    link.parent.chmod(0o777)
    assert own_temporary not in Path(plain_folder(str(folder))).parents


@pytest.mark.parametrize("name", NAMES)
def test_what_compilers_are_told(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the packages, the compiler, its temporary files and what torch keeps lie."""
    root = tmp_path / name
    for folder in ("packages", "temporary", "torch", "bin"):
        (root / folder).mkdir(parents=True)
    (root / "bin" / "g++").touch(mode=0o755)
    monkeypatch.setattr(aoti, "python_path", lambda: [str(root / "packages"), str(root / "gone")])
    monkeypatch.setenv("TMPDIR", str(root / "temporary"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(root / "torch"))
    monkeypatch.setenv("CXX", str(root / "bin" / "g++"))
    told = aoti.AotiBackend().compiler_variables()
    for variable, folder in (
        ("PYTHONPATH", "packages"),
        ("TMPDIR", "temporary"),
        ("TORCHINDUCTOR_CACHE_DIR", "torch"),
        ("CXX", "bin/g++"),
    ):
        value = told[variable]
        assert shlex.split(value) == [value] and ":" not in value and value.isascii()
        assert Path(value).resolve() == root / folder


def test_a_compiler_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "ccache g++")
    with pytest.raises(BuildError, match=r"CXX names 'ccache g\+\+'.* without arguments"):
        aoti.AotiBackend().compiler_variables()


def mounted(monkeypatch: pytest.MonkeyPatch, flags: int, free_blocks: int) -> None:
    status = SimpleNamespace(f_bavail=free_blocks, f_frsize=4096, f_flag=flags)
    monkeypatch.setattr(os, "statvfs", lambda path: status)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("missing", "does not exist"),
        ("file", "does not exist"),
        ("read-only", "cannot be written"),
        ("noexec", "mounted noexec"),
        ("full", "is full: .* MiB are free"),
    ],
)
def test_a_folder_that_is_unfit(
    kind: str, said: str, own_temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named with the remedy in one line, where something is compiled and where it is run."""
    package = tmp_path / "model.pt2"
    package.write_bytes(b"not checked before")
    folder = own_temporary
    if kind == "missing":
        folder = tmp_path / "missing"
    elif kind == "file":
        folder = package
    elif kind == "read-only":
        folder = Path("/proc")
    elif kind == "noexec":
        mounted(monkeypatch, os.ST_NOEXEC, 1000)
    else:
        mounted(monkeypatch, 0, 0)
    monkeypatch.setenv("TMPDIR", str(folder))
    found = temporary_trouble()
    assert found is not None and str(folder) in found and "TMPDIR" in found and "\n" not in found
    with pytest.raises(BuildError, match=said):
        aoti.AotiBackend().compiler_variables()
    with pytest.raises(EngineError, match=said) as failure:
        AotiSession(package, {})
    assert "rebuild" not in str(failure.value)


def test_a_folder_that_is_fit() -> None:
    assert temporary_trouble() is None
