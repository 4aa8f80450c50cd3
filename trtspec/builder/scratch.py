"""Scratch folders: where a build works until its result is moved into place."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def scratch_folder(output_dir: Path) -> Iterator[Path]:
    """A new folder beside ``output_dir``, removed in the end unless it was renamed, with those of
    its parents that were missing and are empty.

    It is locked for as long: a lock ends with its process, on whichever machine or in whichever
    container that runs. Those that nobody holds are of builds that were killed, and go first.

    Raises:
        OSError: it cannot be made.
    """
    parents = (output_dir.parent, *output_dir.parent.parents)
    missing = [parent for parent in parents if not parent.exists()]
    prefix = f".{output_dir.name}.building-"
    if not missing:
        _remove_leftovers(output_dir.parent, prefix)
    folder, lock = _make(output_dir.parent, prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
        with suppress(OSError):  # something lies in it: what was built, or what others made
            for parent in missing:
                parent.rmdir()


def _make(parent: Path, prefix: str) -> tuple[Path, int]:
    """A folder and the descriptor that locks it."""
    while True:
        folder = parent / f"{prefix}{secrets.token_hex(6)}"
        folder.mkdir(parents=True)
        lock = os.open(folder, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_SH)
        if folder.exists():  # else another build took it for a leftover before it was locked
            return folder, lock
        os.close(lock)


def _remove_leftovers(parent: Path, prefix: str) -> None:
    for path in parent.iterdir():
        if not (path.name.startswith(prefix) and path.is_dir()):
            continue
        try:
            lock = os.open(path, os.O_RDONLY)
        except OSError:  # gone meanwhile, or somebody else's
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # held by its build, or in a file system where that cannot be known
            continue
        else:
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(lock)
