"""The wheel, installed where there is no compiler: it says so, and serves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.ci

ROOT = Path(__file__).resolve().parents[2]
MOST_BYTES = 60_000_000
EMBEDDED = "trtspec/assets/"
COMPILERS = ("g++", "c++", "clang++", "gcc", "cc", "cmake", "ninja")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as pip builds it, from the objects that `build/cmake` has."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", folder, ROOT]
    subprocess.run(pip, check=True)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def bin_folder(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That of an environment with the wheel, and with the packages of this one but ours."""
    root = tmp_path_factory.mktemp("environment")
    venv.create(root, with_pip=True)
    (packages,) = root.glob("lib/python*/site-packages")
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        ours = "trtspec" in package.name or package.name == "checkpoint_converters"
        if not ours and not (packages / package.name).exists():
            (packages / package.name).symlink_to(package)
    pip = [root / "bin" / "pip", "install", "-q", "--no-deps", "--no-index", wheel]
    subprocess.run(pip, check=True)
    return root / "bin"


@pytest.fixture(scope="module")
def environment(bin_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables of a machine whose PATH has all programs of this one but compilers."""
    programs = tmp_path_factory.mktemp("programs")
    for folder in ("/usr/bin", "/bin"):
        for program in Path(folder).iterdir():
            link = programs / program.name
            if not program.name.startswith(COMPILERS) and not link.is_symlink():
                link.symlink_to(program)
    path = f"{bin_folder}{os.pathsep}{programs}"
    assert not any(shutil.which(name, path=path) for name in COMPILERS)
    kept = {name: os.environ[name] for name in ("OMP_NUM_THREADS",) if name in os.environ}
    cache = str(tmp_path_factory.mktemp("cache"))
    return {**kept, "PATH": path, "HOME": cache, "TRTSPEC_CACHE_DIR": cache}


def test_what_is_inside(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-linux_x86_64.whl")
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        own = sum(e.compress_size for e in file.infolist() if not e.filename.startswith(EMBEDDED))
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        required = file.read(metadata).decode()
    assert own < MOST_BYTES
    assert {
        "trtspec/lib/libtrtspec_ops.so",
        "trtspec/lib/trtspec_benchmark",
        "trtspec/lib/cuda/plugins/kernels.hpp",
        "trtspec/assets/trtspec-tiny/model.safetensors",
        "trtspec/config/mixers/attention.py",
        "trtspec/py.typed",
    } <= names
    assert not [name for name in names if name.startswith(("tests/", "cpp/", "build"))]
    minor = ".".join(torch.__version__.split(".")[:2])
    assert f"Requires-Dist: torch=={minor}.*\n" in required


def test_it_runs_without_a_compiler(bin_folder: Path, environment: dict[str, str]) -> None:
    """The embedded model, by the quickstart: it is told why it is not compiled."""
    quickstart = [str(bin_folder / "python"), str(ROOT / "examples" / "quickstart_advanced.py")]
    flags = ["--model_dir", "trtspec-tiny", "--max_tokens", "16", "--dtype", "float32"]
    done = subprocess.run(
        [*quickstart, *flags], env=environment, cwd="/", capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "no C++ compiler found" in done.stderr
    assert done.stdout.splitlines()[-1].split() == ["texts", "identical"]


def test_the_program_without_python_finds_torch(
    bin_folder: Path, environment: dict[str, str]
) -> None:
    command = [bin_folder / "trtspec_benchmark", "--help"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "--engine_dir" in done.stdout + done.stderr, done.stderr
