"""Compile one graph of an engine: ``python -m trtspec.builder.compile_worker NAME PACKAGE``.

The engine's contract comes in as JSON on the standard input. A graph depends on shapes alone, so
the worker needs no checkpoint, and the graphs of an engine can be compiled side by side.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from trtspec.builder.compile import compile_graph
from trtspec.engine.folder import EngineConfig
from trtspec.engine.graphs import make_graph, module_of
from trtspec.errors import TrtspecError


def main() -> int:
    name, package = sys.argv[1:]
    engine = EngineConfig.from_dict(json.load(sys.stdin))
    module = module_of(engine, name)
    try:
        compile_graph(make_graph(engine, name, module), Path(package), engine.build.device)
    except TrtspecError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
