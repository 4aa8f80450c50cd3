"""The C++ programs that tests run, out of a build folder that the environment names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

BUILD_VARIABLE = "TRTSPEC_CPP_BUILD"
"""Names a build folder that has the programs."""
REASON = (
    f"{BUILD_VARIABLE} names no build folder with the C++ programs; build them: "
    "cmake -S . -B build/cpp && cmake --build build/cpp"
)


class CppPrograms:
    """Where the programs are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __getitem__(self, name: str) -> Path:
        """The path of a program."""
        path = self.folder / name
        assert path.is_file(), f"{path} is missing; build the target {name}"
        return path


def cpp_programs() -> CppPrograms:
    """The programs; the test is skipped where no build folder is named. For session fixtures."""
    given = os.environ.get(BUILD_VARIABLE)
    if not given:
        pytest.skip(REASON)
    return CppPrograms(Path(given))
