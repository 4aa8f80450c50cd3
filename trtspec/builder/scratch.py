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
    """A new folder beside ``output_dir``. In the end it is removed unless it was renamed, and so
    are those of its parents that were made for it and are empty.

    The folder is locked as long as its process runs, on whichever machine or in whichever container
    that is. Folders without a lock are left from builds that were killed; they are removed first.

    Raises:
        OSError: the folder cannot be made.
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
        with suppress(OSError):  # the parent is not empty: it holds the result, or files of others
            for parent in missing:
                parent.rmdir()


def _make(parent: Path, prefix: str) -> tuple[Path, int]:
    """A folder and the descriptor that locks it."""
    while True:
        folder = parent / f"{prefix}{secrets.token_hex(6)}"
        folder.mkdir(parents=True)
        lock = os.open(folder, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_SH)
        if folder.exists():  # if not, another build removed it before it was locked
            return folder, lock
        os.close(lock)


def _remove_leftovers(parent: Path, prefix: str) -> None:
    for path in parent.iterdir():
        if not (path.name.startswith(prefix) and path.is_dir()):
            continue
        try:
            lock = os.open(path, os.O_RDONLY)
        except OSError:  # gone meanwhile, or not ours to open
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # its build holds it, or this file system has no locks
            continue
        else:
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(lock)
