"""Scratch folders: where a build works until its result is moved into place."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

_LEFTOVER = re.compile(r"\..+\.building-[0-9a-f]*(-old)?")
_ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that by default end a program immediately."""

_in_use: set[Path] = set()
"""Scratch folders of this process, for `remove_scratch`."""


@contextmanager
def scratch_folder(output_dir: Path) -> Iterator[Path]:
    """A new folder beside ``output_dir``. At the end it is removed unless it was renamed, as are
    empty parents that were created for it. This also happens if the program is terminated meanwhile
    (SIGTERM, SIGHUP), unless it handles these signals itself.

    The folder is locked as long as its process runs, on whichever machine or in whichever
    container. Folders without a lock are left from killed builds; those beside ``output_dir`` are
    removed first, whatever was built there.

    Raises:
        OSError: the folder cannot be made.
    """
    parents = (output_dir.parent, *output_dir.parent.parents)
    missing = [parent for parent in parents if not parent.exists()]
    if not missing:
        _remove_leftovers(output_dir.parent)
    with _signals_raise():
        folder, lock = _make(output_dir)
        _in_use.add(folder)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            _in_use.discard(folder)
            os.close(lock)
            with suppress(OSError):  # the parent is not empty: it holds the result, or others'
                for parent in missing:
                    parent.rmdir()


def remove_scratch() -> None:
    """Remove what builds have written so far, for a process that exits immediately while another of
    its threads builds."""
    for folder in tuple(_in_use):
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _signals_raise() -> Iterator[None]:
    """Let `_ENDING` raise SystemExit where they would end the program. Only the main thread can do
    that, and only it needs to, since it is the one that is interrupted."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    is_main = threading.current_thread() is threading.main_thread()
    ours = [n for n in _ENDING if is_main and signal.getsignal(n) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _make(output_dir: Path) -> tuple[Path, int]:
    """A folder and the descriptor that locks it."""
    while True:
        name = f".{output_dir.name}.building-{secrets.token_hex(6)}"
        folder = output_dir.with_name(name)
        folder.mkdir(parents=True)
        lock = os.open(folder, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_SH)
        if folder.exists():  # if not, another build removed it before it was locked
            return folder, lock
        os.close(lock)


def _remove_leftovers(parent: Path) -> None:
    for path in parent.iterdir():
        if not (_LEFTOVER.fullmatch(path.name) and path.is_dir()):
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
