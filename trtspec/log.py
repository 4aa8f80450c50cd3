"""Logging: one logger for the package. If logging is not configured, Python prints only warnings,
so a script still hears of a doubtful draft. Long steps such as compiling are then also reported on
standard error; see `progress`."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

logger = logging.getLogger("trtspec")

HEARTBEAT_SECONDS = 15.0
SHOWN_AFTER = {True: 0.5, False: 2.0}
"""Seconds before a running step is reported, on a terminal and elsewhere."""

_shows: ContextVar[bool] = ContextVar("shows_progress", default=True)


class _OnlyOnce(logging.Filter):
    """Drops messages that have been printed before."""

    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        line = record.getMessage()
        is_new = line not in self._said
        self._said.add(line)
        return is_new


def log_to_stderr(level: int | str = logging.INFO, *, repeats: bool = True) -> None:
    """Print the package's log to standard error (for programs, not libraries). ``repeats``: also
    messages that were printed before, word for word."""
    if not any(type(h) is logging.StreamHandler for h in logger.handlers):
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("[trtspec] %(message)s"))
        if not repeats:
            handler.addFilter(_OnlyOnce())
        logger.addHandler(handler)
    logger.setLevel(level)


@contextmanager
def progress_shown(shown: bool) -> Iterator[None]:
    """Whether `progress` may write to standard error by itself; logging is unaffected."""
    token = _shows.set(shown)
    try:
        yield
    finally:
        _shows.reset(token)


@contextmanager
def progress(
    step: str, why: str = "", *, beats: bool = True, is_long: bool = True
) -> Iterator[None]:
    """Log the start, a sign of life every 15 s, and the duration of a long step. ``why``: added to
    the start message. ``beats``: False for a step whose parts report progress themselves.
    ``is_long``: False for a step that is usually quick and is reported only when it is not.

    If no handler would see these lines, they go to standard error once the step has taken
    `SHOWN_AFTER`, so that nobody waits minutes in silence.
    """
    began, done = time.monotonic(), threading.Event()
    logs = logger.isEnabledFor(logging.INFO) and logger.hasHandlers()
    shows = _shows.get() and not logs
    begun = logs and is_long

    def tell(line: str) -> None:
        logger.info("%s", line)
        if shows:
            _print(line)

    def watch() -> None:
        nonlocal begun
        if not begun:
            if done.wait(SHOWN_AFTER[_is_terminal()]):
                return
            begun = True
            tell(f"{step} ...{why}")
        while not done.wait(HEARTBEAT_SECONDS):
            if beats:
                tell(f"{step}: still working, {time.monotonic() - began:.0f} s")

    if begun:
        tell(f"{step} ...{why}")
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
    if begun:
        tell(f"{step}: {time.monotonic() - began:.1f} s")


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # there is none, or it was closed
        return False


def _print(line: str) -> None:
    """Print to the current standard error, which a program may have closed or replaced."""
    try:
        print(f"[trtspec] {line}", file=sys.stderr, flush=True)
    except (AttributeError, OSError, ValueError):
        return
