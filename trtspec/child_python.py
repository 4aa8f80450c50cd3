"""Child processes in Python: they import the package that their parent runs, wherever they stand.

``python -m`` and ``python -c`` import first from the folder that they are started in, which may
hold another copy of the package, as a source tree does that has never been built.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

PYTHON = sys.executable
"""The interpreter that runs this."""

_PR_SET_PDEATHSIG = 1
_ROOT = Path(__file__).resolve().parent.parent


def python_command(*arguments: str) -> list[str]:
    """`PYTHON` with these arguments, blind for the folder that it is started in; to be run in a
    `python_environment`."""
    return [PYTHON, "-P", *arguments]


def python_environment(**variables: str) -> dict[str, str]:
    """This process's environment with ``variables``, in which `PYTHON` imports what this process
    does, however its path was set."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(python_path()), **variables}


def end_with_parent() -> None:
    """Have this process killed when the one that started it ends, however that comes about (Linux):
    nobody would use what it makes."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def python_path() -> list[str]:
    """Where this process imports from, without the folder that it stands in, which may have been
    another one when the package was imported."""
    path = [os.path.abspath(entry) for entry in sys.path if entry]
    # Not in front of all: other packages that lie beside ours must not hide the standard library.
    first = (i for i, entry in enumerate(path) if Path(entry, __package__).is_dir())
    path.insert(next(first, len(path)), str(_ROOT))
    return list(dict.fromkeys(path))
