"""Scratch folders of builds that end before they are done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trtspec.builder.scratch import remove_scratch, scratch_folder


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_program_that_is_told_to_end_leaves_nothing(number: int, tmp_path: Path) -> None:
    script = (
        "import os, sys, pathlib\n"
        "from trtspec.builder.scratch import scratch_folder\n"
        "with scratch_folder(pathlib.Path(sys.argv[1], 'new', 'engine')) as folder:\n"
        "    (folder / 'weights').touch()\n"
        "    os.kill(os.getpid(), int(sys.argv[2]))\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path), str(int(number))]
    assert subprocess.run(command, check=False).returncode == 128 + number
    assert os.listdir(tmp_path) == []


def test_a_program_that_listens_to_signals_goes_on(tmp_path: Path) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with scratch_folder(tmp_path / "engine"):
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]


def test_a_process_that_ends_at_once_beside_a_build(tmp_path: Path) -> None:
    with scratch_folder(tmp_path / "engine"):
        remove_scratch()
        assert os.listdir(tmp_path) == []
