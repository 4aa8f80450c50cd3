"""Compile graphs of an engine side by side: ``python -m trtspec.builder.compile_worker``.

A job comes in as JSON on the standard input: ``engine``, its contract, and ``packages``, where the
package of each graph goes, by the graph's name. A graph depends on shapes alone, so no checkpoint
is needed. Each graph is compiled in a process of its own, forked from this one, so the slow imports
and the look at the processor happen only once. A single graph is compiled in this process, as CUDA
cannot be used behind a fork.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import sys
import traceback
import warnings
from pathlib import Path
from typing import NoReturn

from trtspec.child_python import end_with_parent
from trtspec.engine.folder import EngineConfig
from trtspec.engine.graphs import engine_graphs
from trtspec.errors import TrtspecError
from trtspec.ops.host import usable_cpus
from trtspec.temporary import temporary_folder

_MESSAGE_HEAD = 2000
"""How many characters of a compiler's output are kept; its first lines say what is wrong."""

_DISK_FULL = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))


def main() -> int:
    """Return 1, and print the compiler's message, as soon as a graph fails; others may still be
    running."""
    job = json.load(sys.stdin)
    engine = EngineConfig.from_dict(job["engine"])
    engine.backend.prepare_compiler()
    waiting = [(name, Path(package)) for name, package in job["packages"].items()]
    if len(waiting) == 1:
        ((name, package),) = waiting
        try:
            _compile(engine, name, package)
        except Exception as error:
            return _fail(name, package, _said(error))
        return 0
    # A library has started a thread. The forks do not need it, so the warning is beside the point.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    running: dict[int, tuple[str, Path, int]] = {}
    while waiting or running:
        while waiting and len(running) < usable_cpus():
            name, package = waiting.pop(0)
            log = os.memfd_create(package.name)  # in memory, as a disk may be what is full
            child = os.fork()
            if child == 0:
                _compile_and_exit(engine, name, package, log)
            running[child] = name, package, log
        child, status = os.wait()
        name, package, log = running.pop(child)
        if status:
            said = os.pread(log, os.fstat(log).st_size, 0).decode(errors="replace")
            if os.WIFSIGNALED(status):
                said = f"{_killed_by(os.WTERMSIG(status))}\n{said}"
            return _fail(name, package, said)
        os.close(log)
    return 0


def _killed_by(number: int) -> str:
    more = ", as a system does that runs out of memory" if number == signal.SIGKILL else ""
    return f"its process was ended by signal {number} ({signal.strsignal(number)}){more}"


def _said(error: BaseException) -> str:
    """An error's message, with its origin if it was not anticipated."""
    if isinstance(error, TrtspecError):
        return str(error)
    what = "".join(traceback.format_exception_only(error))
    return what + "".join(traceback.format_tb(error.__traceback__))


def _fail(name: str, package: Path, said: str) -> int:
    said = said.strip()
    if any(full in said for full in _DISK_FULL):
        free = [
            f"{shutil.disk_usage(path).free / 2**20:.1f} MiB in {path}"
            for path in (temporary_folder(), package.parent)
        ]
        said = (
            f"no space is left: {' and '.join(free)} are free; make room, or name other folders in "
            "TMPDIR and TRTSPEC_CACHE_DIR"
        )
    rest = len(said) - _MESSAGE_HEAD
    if rest > 0:
        said = f"{said[:_MESSAGE_HEAD]} ... ({rest} characters more)"
    print(f"{name} did not compile: {said}", file=sys.stderr)
    return 1


def _compile(engine: EngineConfig, name: str, package: Path) -> None:
    engine.backend.compile(engine_graphs(engine)[name], package, engine.build.device)


def _compile_and_exit(engine: EngineConfig, name: str, package: Path, log: int) -> NoReturn:
    """Compile in this forked process and exit. ``log``: receives what libraries print, or the
    error."""
    status = 1
    try:
        end_with_parent()
        for stream in (sys.stdout, sys.stderr):
            os.dup2(log, stream.fileno())
        _compile(engine, name, package)
        status = 0
    except BaseException as error:
        os.ftruncate(log, 0)
        os.pwrite(log, _said(error).encode(errors="replace"), 0)
    finally:
        os._exit(status)


if __name__ == "__main__":
    end_with_parent()
    sys.exit(main())
