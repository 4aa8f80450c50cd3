"""Logging: one logger for the package. Where nobody has set up logging, Python prints its warnings
alone, so that a script hears of a draft that is doubted."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger("trtspec")

HEARTBEAT_SECONDS = 15.0


class _OnlyOnce(logging.Filter):
    """Lets nothing pass that has been said before."""

    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        line = record.getMessage()
        is_new = line not in self._said
        self._said.add(line)
        return is_new


def log_to_stderr(level: int | str = logging.INFO, *, repeats: bool = True) -> None:
    """Print the package's log lines to standard error (for programs, not for libraries).
    ``repeats``: also those that were printed before, word for word."""
    if not any(type(h) is logging.StreamHandler for h in logger.handlers):
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("[trtspec] %(message)s"))
        if not repeats:
            handler.addFilter(_OnlyOnce())
        logger.addHandler(handler)
    logger.setLevel(level)


@contextmanager
def progress(step: str) -> Iterator[None]:
    """Log the start, a sign of life every 15 s, and the duration of a long step."""
    began = time.monotonic()
    done = threading.Event()

    def beat() -> None:
        while not done.wait(HEARTBEAT_SECONDS):
            logger.info("%s: still working, %.0f s", step, time.monotonic() - began)

    logger.info("%s ...", step)
    ticker = threading.Thread(target=beat, daemon=True)
    ticker.start()
    try:
        yield
    finally:
        done.set()
        ticker.join()
    logger.info("%s: %.1f s", step, time.monotonic() - began)
