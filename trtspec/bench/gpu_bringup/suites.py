"""Parts ``parity`` and ``memory``: the GPU tests, and compute-sanitizer over the smallest of them.
In a rehearsal, some of those on a fake device, and the kernels' emulator."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from trtspec.bench.gpu_bringup.part import Case, PartFailed, PartSkipped, Place
from trtspec.child_python import python_command, python_environment

_FOLDER = "tests/gpu"
_PYTEST = ("-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider", "--tb=short", "--maxfail=5")
_TESTS: Mapping[str, Sequence[str]] = {
    "kernels": (f"{_FOLDER}/test_kernels.py", f"{_FOLDER}/test_attention.py"),
    "kernels by NVRTC": (f"{_FOLDER}/test_cuda_ops.py",),
    "engines of modules": (f"{_FOLDER}/test_engine.py", "-k", "not compiled"),
    "compiled engines": (f"{_FOLDER}/test_engine.py", "-k", "test_compiled"),
}
_PLAYED = {"kernels": (f"{_FOLDER}/test_on_fake_cuda.py", "-k", "kernels_and_launches and accept")}
_SMALL = (
    f"{_FOLDER}/test_kernels.py",
    f"{_FOLDER}/test_attention.py",
    "-k",
    "in_a_graph or test_accept or test_kv_compact or (test_sample and 5) or (candidates and 5)",
)
_TOOLS = ("memcheck", "racecheck")
_BAD = re.compile(r"(?:FAILED|ERROR|={9}) (?!COMPUTE-SANITIZER)")
"""Prefixes of lines in which pytest and compute-sanitizer report a finding."""


def parity(place: Place) -> Iterable[Case]:
    if not (place.root / _FOLDER).is_dir():
        raise PartSkipped(f"{_FOLDER} is not here: run it from a source tree")
    for name, tests in (_PLAYED if place.is_rehearsal else _TESTS).items():
        yield Case({"tests": name}, partial(run, place, python_command(*_PYTEST, *tests)))


def memory(place: Place) -> Iterable[Case]:
    if place.is_rehearsal:
        folder = Path(os.environ.get("TRTSPEC_EMULATED", place.root / "build" / "cmake"))
        for program in folder.rglob("test_accept_emulated"):
            yield Case({"tool": "emulator"}, partial(run, place, [str(program)]))
        return
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(tool).is_file():
        raise PartSkipped("there is no compute-sanitizer")
    for name in _TOOLS:
        command = [tool, "--tool", name, "--error-exitcode", "9"]
        command += python_command(*_PYTEST, *_SMALL)
        # Torch hands out memory in pieces of its own, between which nothing would be noticed.
        variables = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        yield Case({"tool": name}, partial(run, place, command, **variables))


def run(place: Place, command: Sequence[str], **variables: str) -> Mapping[str, str]:
    """The last line of a program's output, its summary; its first finding is an error. The log has
    all output."""
    environment = python_environment(**variables)
    done = subprocess.run(command, cwd=place.root, env=environment, capture_output=True, text=True)
    said = f"{done.stdout}{done.stderr}".strip() or f"{command[0]} printed nothing"
    print(said, flush=True)
    last = said.rpartition("\n")[2].strip("= ")
    if done.returncode:
        bad = next((line.strip("= ") for line in said.splitlines() if _BAD.match(line)), "")
        raise PartFailed("; ".join(filter(None, (bad, last))))
    return {"found": last}
