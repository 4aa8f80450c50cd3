"""The process that runs engines; their kernels' threads do not survive a fork."""

from __future__ import annotations

import os

from trtspec.errors import EngineError

_used: list[int] = []  # the process that opened an LLM, once one did; a child inherits it


def check_process() -> None:
    """Raise EngineError in a child that was forked from a process with an LLM: an LLM there would
    wait for kernel threads that do not exist, or crash."""
    if _used and _used[0] != os.getpid():
        raise EngineError(
            f"this process ({os.getpid()}) was forked from {_used[0]}, which had opened an LLM, "
            "and engines do not run in it: start processes by spawn, or fork before the first LLM"
        )


def claim_process() -> None:
    """Mark this process as one that runs engines."""
    _used[:] = [os.getpid()]
