"""Part ``memory``: compute-sanitizer over the smallest cases; in a rehearsal, the emulator's."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtspec.bench.gpu_bringup.part import PartFailed, PartSkipped, Place
from trtspec.child_python import python_command, python_environment

_TOOLS = ("memcheck", "racecheck")
_FOUND = 9
"""The exit status by which compute-sanitizer says that it found something."""
_SECONDS = 80
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (.*)")


def run(place: Place) -> Mapping[str, Any]:
    """Nothing may be found."""
    if place.is_rehearsal:
        return rehearse(place)
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(tool).is_file():
        raise PartSkipped("there is no compute-sanitizer")
    command = python_command("-m", "trtspec.bench.gpu_bringup.parity")
    rows, wrong = [], []
    for name in _TOOLS:
        found = sanitized([tool, "--tool", name, "--error-exitcode", str(_FOUND), *command])
        rows.append({"tool": name, "found": found})
        if not found.startswith("0 "):
            wrong.append(f"{name}: {found}")
    if wrong:
        raise PartFailed("; ".join(wrong))
    return {"tools": rows}


def sanitized(command: list[str]) -> str:
    """The tool's summary, and its first words about what it found."""
    # Torch hands out memory in pieces of its own, between which nothing would be noticed.
    environment = python_environment(PYTORCH_NO_CUDA_MEMORY_CACHING="1")
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"not done after {_SECONDS} s"
    said = done.stdout + done.stderr
    print(said)
    summary = _SUMMARY.search(said)
    first = next((line for line in said.splitlines() if "=========" in line and ":" in line), "")
    if summary is None:
        return f"no summary (status {done.returncode}): {said.strip().splitlines()[-1:]}"
    return summary[1] if done.returncode == 0 else f"{summary[1]} ({first.strip('= ')})"


def rehearse(place: Place) -> Mapping[str, Any]:
    """The emulator looks for the same: in a build folder, where its tests were built."""
    folder = Path(os.environ.get("TRTSPEC_CPP_BUILD", place.root / "build" / "cmake"))
    program = next(iter(sorted(folder.rglob("test_accept_emulated"))), None)
    if program is None:
        raise PartSkipped(f"{folder} holds no emulated kernels: build the C++ tests there")
    done = subprocess.run([str(program)], capture_output=True, text=True)
    if done.returncode:
        raise PartFailed(f"{program.name}: {(done.stdout + done.stderr).strip()[-300:]}")
    return {"emulated": program.name}
