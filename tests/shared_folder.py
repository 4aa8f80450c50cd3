"""Folders that the processes of one test run share: under pytest-xdist, each worker is one."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def shared_folder(tmp_path_factory: pytest.TempPathFactory, name: str) -> Path:
    """A folder of the run's own, made when first asked for."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # a worker's own folder lies in that of the run
    folder = root / name
    folder.mkdir(exist_ok=True)
    return folder


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Wait while another process is in this block for the same folder."""
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
