"""Parts ``parity`` and ``memory``: the tests for GPUs, and compute-sanitizer over the smallest of
them. In a rehearsal, some of those on a device that is played, and the kernels' emulator."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from trtspec.bench.gpu_bringup.part import Case, PartFailed, PartSkipped, Place
from trtspec.child_python import python_command, python_environment

_FOLDER = "tests/gpu"
_PYTEST = ("-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider", "--tb=short", "--maxfail=5")
_TESTS: Mapping[str, Sequence[str]] = {
    "kernels": (f"{_FOLDER}/test_kernels.py",),
    "kernels by NVRTC": (f"{_FOLDER}/test_cuda_ops.py",),
    "engines of modules": (f"{_FOLDER}/test_engine.py", "-k", "not compiled"),
    "compiled engines": (f"{_FOLDER}/test_engine.py", "-k", "test_compiled"),
}
_PLAYED = {"kernels": (f"{_FOLDER}/test_played.py", "-k", "kernels_and_launches and accept")}
_SMALL = (
    f"{_FOLDER}/test_kernels.py",
    "-k",
    "in_a_graph or test_accept or test_kv_compact or (test_sample and 5) or (candidates and 5)",
)
_TOOLS = ("memcheck", "racecheck")
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (.*)")


def parity(place: Place) -> Iterable[Case]:
    _require_tests(place)
    for name, arguments in (_PLAYED if place.is_rehearsal else _TESTS).items():
        yield Case({"tests": name}, partial(run_tests, place, arguments))


def run_tests(place: Place, arguments: Sequence[str]) -> Mapping[str, Any]:
    """Pytest's own summary; the first failure is the error."""
    status, lines = _run(place, python_command(*_PYTEST, *arguments))
    bad = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    if status:
        raise PartFailed("; ".join((*bad[:1], lines[-1])))
    return {"found": lines[-1]}


def memory(place: Place) -> Iterable[Case]:
    if place.is_rehearsal:
        folder = Path(os.environ.get("TRTSPEC_CPP_BUILD", place.root / "build" / "cmake"))
        program = next(iter(sorted(folder.rglob("test_accept_emulated"))), None)
        if program is None:
            raise PartSkipped(f"{folder} holds no emulated kernels: build the C++ tests there")
        yield Case({"tool": "emulator"}, partial(emulate, place, program))
        return
    _require_tests(place)
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(tool).is_file():
        raise PartSkipped("there is no compute-sanitizer")
    for name in _TOOLS:
        yield Case({"tool": name}, partial(sanitize, place, tool, name))


def sanitize(place: Place, tool: str, name: str) -> Mapping[str, Any]:
    """The tool's summary; what it found is the error."""
    command = [tool, "--tool", name, "--error-exitcode", "9", *python_command(*_PYTEST, *_SMALL)]
    # Torch hands out memory in pieces of its own, between which nothing would be noticed.
    status, lines = _run(place, command, PYTORCH_NO_CUDA_MEMORY_CACHING="1")
    summary = _SUMMARY.search("\n".join(lines))
    if status or summary is None:
        first = [line.strip("= ") for line in lines if "=========" in line and ":" in line][:1]
        raise PartFailed("; ".join((*first, summary[1] if summary else lines[-1])))
    return {"found": summary[1]}


def emulate(place: Place, program: Path) -> Mapping[str, Any]:
    """The emulator looks for the same as the tool."""
    status, lines = _run(place, [str(program)])
    if status:
        raise PartFailed(f"{program.name}: {lines[-1]}")
    return {"found": program.name}


def _require_tests(place: Place) -> None:
    if not (place.root / _FOLDER).is_dir():
        raise PartSkipped(f"{_FOLDER} is not here: run it from a source tree")


def _run(place: Place, command: Sequence[str], **variables: str) -> tuple[int, list[str]]:
    """The exit status and the lines that a program printed, which the log has too."""
    environment = python_environment(**variables)
    done = subprocess.run(command, cwd=place.root, env=environment, capture_output=True, text=True)
    said = done.stdout + done.stderr
    print(said, flush=True)
    return done.returncode, said.strip().splitlines() or ["nothing was printed"]
