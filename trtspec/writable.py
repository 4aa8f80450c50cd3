"""Atomic file writes, and checks made before work begins, which leave no trace, that files can be
written."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path


def check_folder(folder: Path) -> None:
    """Raise OSError if no file could be written into ``folder`` after creating it with its parents.
    Nothing is created; only existing folders are probed, with a file that is removed again."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    if not there.is_dir():
        raise NotADirectoryError(f"{there} is a file")
    probe = there / f".{secrets.token_hex(8)}.probe"
    try:
        with probe.open("xb"):
            pass
    finally:
        probe.unlink(missing_ok=True)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file under another name in the same folder and rename it once it is on disk, so that
    it appears whole or not at all. OSError leaves the previous state."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with fresh.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise


def check_file(path: Path) -> None:
    """Raise OSError if ``path``, in an existing folder, could not be written or replaced."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent}")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder")
    check_folder(folder)
