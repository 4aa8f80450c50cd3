"""The C++ programs that tests run: built once a session, from the objects of an editable
installation where there is one, or taken from a build folder."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .shared_folder import one_at_a_time, shared_folder

ROOT = Path(__file__).resolve().parent.parent
BUILD_VARIABLE = "TRTSPEC_CPP_BUILD"
"""Names a build folder that has the programs already."""
EDITABLE_BUILD = ROOT / "build" / "cmake"
"""Where an editable installation has compiled most of what the programs consist of."""
PROGRAMS = ("trtspec_replay", "trtspec_benchmark", "trtspec_benchmark_fake")


class CppPrograms:
    """Where the programs are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __getitem__(self, name: str) -> Path:
        """The path of one of `PROGRAMS`."""
        path = self.folder / name
        assert path.is_file(), f"{path} is missing; build the target {name}"
        return path


def _is_ours() -> bool:
    """Whether `EDITABLE_BUILD` is there, and for the environment in which the tests run."""
    cache = EDITABLE_BUILD / "CMakeCache.txt"
    text = cache.read_text() if cache.is_file() else ""
    found = re.search(r"^TRTSPEC_PYTHON:\w+=(.+)$", text, re.MULTILINE)
    return found is not None and Path(found[1]).parent == Path(sys.executable).parent


@functools.cache
def _build(folder: Path) -> str:
    """Build the programs; the reason if that is not possible here, else ''. A failure fails the
    test that asked first and all later ones."""
    # As setup.py, with the tools of the environment first: another CMake compiles all anew.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    compiler = os.environ.get("CXX") or "c++"
    cmake = shutil.which("cmake", path=path)
    for tool, found in (("cmake", cmake), (compiler, shutil.which(compiler, path=path))):
        if found is None:
            return f"{tool} is missing, and {BUILD_VARIABLE} names no build folder"
    # A folder that is there keeps its generator.
    is_new = not (folder / "CMakeCache.txt").is_file()
    generator = ["-G", "Ninja"] if is_new and shutil.which("ninja", path=path) else []
    configure = [
        str(cmake), "-S", str(ROOT), "-B", str(folder), *generator, "-DTRTSPEC_BUILD_TORCH=OFF",
        "-DTRTSPEC_BUILD_RUNTIME=ON", "-DTRTSPEC_BUILD_TESTS=ON", "-DTRTSPEC_BUILD_PLUGINS=OFF",
        "-UTENSORRT_ROOT", f"-DTRTSPEC_PYTHON={sys.executable}",
    ]  # fmt: skip
    build = [str(cmake), "--build", str(folder), "--parallel", str(os.cpu_count() or 1)]
    environment = {**os.environ, "PATH": path}
    for command in (configure, [*build, "--target", *PROGRAMS]):
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode:
            tail = (done.stdout + done.stderr)[-4000:]
            raise RuntimeError(f"{' '.join(command)} failed:\n{tail}")
    return ""


def cpp_programs(tmp_path_factory: pytest.TempPathFactory) -> CppPrograms:
    """The programs; the test is skipped where they cannot be built. For session fixtures."""
    given = os.environ.get(BUILD_VARIABLE)
    if given:
        return CppPrograms(Path(given))
    folder = EDITABLE_BUILD if _is_ours() else shared_folder(tmp_path_factory, "cpp_build")
    with one_at_a_time(folder):
        reason = _build(folder)
    if reason:
        pytest.skip(reason)
    return CppPrograms(folder)
