"""Files that appear whole, and whether they can be written somewhere: asked before work begins, and
without leaving a trace."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path


def check_folder(folder: Path) -> None:
    """OSError if no file could be written into ``folder``, made with its parents if it is missing.
    Nothing is: a file is written into what is there of it, and removed."""
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
    """Write a file under another name beside it, and rename it once it is on disk: it appears whole
    or not at all. OSError leaves nothing but what was there before."""
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
    """OSError if ``path`` could not be written, or replaced, in a folder that is there."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent}")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder")
    check_folder(folder)
