"""What the installation does about CUDA: when kernels are built, and what NVRTC finds later."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import setuptools

from trtspec.ops import cuda_driver, cuda_launch

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def setup_names(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(setuptools, "setup", lambda **_: None)
    for name in ("CUDACXX", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.syspath_prepend(str(ROOT))  # as setuptools has it, by `backend-path`
    return runpy.run_path(str(ROOT / "setup.py"))


@pytest.fixture
def find_nvcc(setup_names: dict[str, Any]) -> Callable[[str | None, str], str | None]:
    found: Callable[[str | None, str], str | None] = setup_names["find_nvcc"]
    return found


def compiler_in(folder: Path) -> Path:
    (folder / "bin").mkdir(parents=True)
    nvcc = folder / "bin" / "nvcc"
    nvcc.write_text("#!/bin/sh\n")
    nvcc.chmod(0o755)
    return nvcc


def test_torch_without_cuda_builds_for_the_cpu(
    find_nvcc: Callable[[str | None, str], str | None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    nvcc = compiler_in(tmp_path)
    assert find_nvcc(None, str(nvcc.parent)) is None
    assert "torch has no CUDA" in capsys.readouterr().out


def test_where_nvcc_is_looked_for(
    find_nvcc: Callable[[str | None, str], str | None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "none"))
    assert find_nvcc("13.0", str(tmp_path)) is None
    said = capsys.readouterr().out
    assert "CUDA 13.0, but there is no nvcc" in said and str(tmp_path / "none") in said
    at_home = compiler_in(tmp_path / "home")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    assert find_nvcc("13.0", str(tmp_path)) == str(at_home)
    in_path = compiler_in(tmp_path / "path")
    assert find_nvcc("13.0", str(in_path.parent)) == str(in_path)
    monkeypatch.setenv("CUDACXX", "/named/nvcc")
    assert find_nvcc("13.0", str(in_path.parent)) == "/named/nvcc"
    assert capsys.readouterr().out == ""


def test_installed_sources_include_each_other(setup_names: dict[str, Any], tmp_path: Path) -> None:
    """All but what the emulator has instead of PTX, behind a condition."""
    setup_names["copy_cuda_sources"](tmp_path)
    missing = {
        name
        for file in tmp_path.rglob("*.*")
        for name in re.findall(r"(?m)^#include [<\"](\S+\.(?:hpp|cuh))", file.read_text())
        if not any(
            (folder / name).is_file()
            for folder in (
                *(file.parent, tmp_path / "plugins", tmp_path / "plugins" / "kernels"),
                *(tmp_path / "cpp" / "include", tmp_path / "cpp" / "ops"),
            )
        )
    }
    assert missing == {"ptx.hpp"}


@pytest.mark.skipif(
    not cuda_driver.is_available(), reason="cuda-python or NVRTC is not installed (trtspec[cuda])"
)
def test_installed_sources_are_complete(
    setup_names: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup_names["copy_cuda_sources"](tmp_path)
    monkeypatch.setattr(cuda_launch, "SOURCE_ROOTS", (tmp_path,))
    for source in cuda_launch.SOURCES.values():
        assert cuda_launch.compile_kernels(source, 90).image
