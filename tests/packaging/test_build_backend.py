"""Which torch a build compiles against, and which one its metadata ask for."""

from __future__ import annotations

import importlib
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest
from setuptools import build_meta

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The build backend in a build that is isolated from the environment of `tmp_path`."""
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.delitem(sys.modules, "build_backend", raising=False)
    module = importlib.import_module("build_backend")
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    return module


def install_torch(folder: Path, version: str, cuda: str | None = None) -> Path:
    package = folder / "torch"
    package.mkdir()
    (package / "version.py").write_text(f"__version__ = {version!r}\ncuda = {cuda!r}\n")
    return package


def test_an_environment_that_an_isolated_build_hides(backend: ModuleType, tmp_path: Path) -> None:
    package = install_torch(tmp_path, "2.13.1+cu130", "13.0")
    found = backend.find_torch()
    assert (found.folder, found.cuda, found.requirement) == (package, "13.0", "torch==2.13.*")


@pytest.mark.parametrize(
    ("version", "asks"), [(None, True), ("2.10.0+cpu", True), ("2.13.0+cpu", False)]
)
def test_torch_is_asked_for_where_none_fits(
    backend: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: str | None,
    asks: bool,
) -> None:
    """A second copy of it would be gigabytes, and might be for another device."""
    monkeypatch.setattr(build_meta, "get_requires_for_build_wheel", lambda settings: ["ninja"])
    if version is not None:
        install_torch(tmp_path, version)
    wanted = [f"torch{backend.TORCH}"] if asks else []
    assert backend.get_requires_for_build_wheel() == ["ninja", *wanted]


def test_what_the_sources_of_a_release_are(tmp_path: Path) -> None:
    """All that a wheel is built from, and no tests."""
    command = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    listed = (tmp_path / "trtspec.egg-info" / "SOURCES.txt").read_text().split()
    wanted = {"LICENSE", "CHANGELOG.md", "CMakeLists.txt", "build_backend.py", "setup.py"}
    assert wanted <= set(listed)
    assert "cpp/ops/sampling_kernel.hpp" in listed and "plugins/kernels.hpp" in listed
    assert not [name for name in listed if "tests" in name.split("/") or name.startswith("build/")]
    assert not [name for name in listed if name.endswith((".so", ".pyc"))]
