"""Compile graphs of an engine side by side: ``python -m trtspec.builder.compile_worker``.

A job comes in as JSON on the standard input: ``engine``, its contract, and ``packages``, where the
package of each graph goes, by the graph's name. A graph depends on shapes alone, so no checkpoint
is needed. Each graph is compiled in a process of its own, forked from this one, so the slow imports
and the look at the processor happen only once. A single graph is compiled in this process, as CUDA
cannot be used behind a fork.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import NoReturn

from trtspec.engine.folder import EngineConfig
from trtspec.engine.graphs import engine_graphs
from trtspec.errors import TrtspecError
from trtspec.ops.host import usable_cpus

_MESSAGE_TAIL = 2000  # characters that are kept of what a compiler said


def main() -> int:
    """Return 1, and print what the compiler said, as soon as a graph fails. Others may be under way
    then."""
    job = json.load(sys.stdin)
    engine = EngineConfig.from_dict(job["engine"])
    engine.backend.prepare_compiler()
    waiting = [(name, Path(package)) for name, package in job["packages"].items()]
    if len(waiting) == 1:
        ((name, package),) = waiting
        try:
            _compile(engine, name, package)
        except Exception as error:
            said = str(error) if isinstance(error, TrtspecError) else traceback.format_exc()
            return _fail(name, said)
        return 0
    # A library has started a thread. The forks do not need it, so the warning is beside the point.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    running: dict[int, tuple[str, Path]] = {}
    with tempfile.TemporaryDirectory() as logs:
        while waiting or running:
            while waiting and len(running) < usable_cpus():
                name, package = waiting.pop(0)
                log = Path(logs) / package.name
                child = os.fork()
                if child == 0:
                    _compile_and_exit(engine, name, package, log)
                running[child] = name, log
            child, status = os.wait()
            name, log = running.pop(child)
            if status:
                return _fail(name, log.read_text(errors="replace"))
    return 0


def _fail(name: str, said: str) -> int:
    print(f"{name} did not compile: {said.strip()[-_MESSAGE_TAIL:]}", file=sys.stderr)
    return 1


def _compile(engine: EngineConfig, name: str, package: Path) -> None:
    engine.backend.compile(engine_graphs(engine)[name], package, engine.build.device)


def _compile_and_exit(engine: EngineConfig, name: str, package: Path, log: Path) -> NoReturn:
    """Compile in a process of its own, which ends here."""
    status = 1
    try:
        with log.open("w") as output:
            for stream in (sys.stdout, sys.stderr):
                os.dup2(output.fileno(), stream.fileno())
        _compile(engine, name, package)
        status = 0
    except TrtspecError as error:
        print(error, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
