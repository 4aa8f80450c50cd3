"""Python child processes that import the same package as their parent, whatever their working
folder.

``python -m`` and ``python -c`` import first from the working folder, which may hold another copy of
the package, such as a source tree that was never built.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

PYTHON = sys.executable
"""The running interpreter."""

_PR_SET_PDEATHSIG = 1
_ROOT = Path(__file__).resolve().parent.parent


def python_command(*arguments: str) -> list[str]:
    """`PYTHON` with these arguments, ignoring the working folder; to be run in a
    `python_environment`."""
    return [PYTHON, "-P", *arguments]


def python_environment(**variables: str) -> dict[str, str]:
    """This process's environment plus ``variables``, in which `PYTHON` imports from where this
    process does, however its path was set."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(python_path()), **variables}


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends for whatever reason (Linux), because
    nobody would use its result."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def python_path() -> list[str]:
    """Where this process imports from, without its working folder, which may have changed since the
    package was imported."""
    path = [os.path.abspath(entry) for entry in sys.path if entry]
    # Not in front of all: other packages that lie beside ours must not hide the standard library.
    first = (i for i, entry in enumerate(path) if Path(entry, __package__).is_dir())
    path.insert(next(first, len(path)), str(_ROOT))
    return list(dict.fromkeys(path))
