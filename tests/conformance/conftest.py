"""The program that replays traces through the C++ executor."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from ..cpp_build import CppPrograms, cpp_programs

Lines: TypeAlias = Iterable[dict[str, Any]]
Replay: TypeAlias = Callable[[Lines], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def programs() -> CppPrograms:
    return cpp_programs()


@pytest.fixture
def replay(programs: CppPrograms, tmp_path: Path) -> Replay:
    """Runs a trace through the C++ executor."""

    def run(lines: Lines) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "trace.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        command = [str(programs["trtspec_replay"]), str(path)]
        return subprocess.run(command, capture_output=True, text=True, timeout=300)

    return run
