"""The only imports of the record from inside trtspec: what has no public name and is recorded.

A move of these edits this file. Everything else of the record goes through `trtspec.__all__`.
"""

from __future__ import annotations

import contextlib
import io
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from trtspec.backends.shape import Graph
from trtspec.builder.graph_cache import graph_key
from trtspec.builder.plan import BuildPlan, plan_build
from trtspec.commands import build as build_command
from trtspec.engine.graphs import engine_graphs
from trtspec.llmapi.options import LLMConfig
from trtspec.speculative.options import parse_speculative_config

CONFIG_NAME = "config.json"


def _plan(
    checkpoint: Path, speculation: Mapping[str, Any] | None, backend: str, **options: Any
) -> BuildPlan:
    build = LLMConfig(backend=backend, **options).build_config()
    return plan_build(checkpoint, build, parse_speculative_config(speculation))


def contract(
    checkpoint: Path, speculation: Mapping[str, Any] | None, backend: str, **options: Any
) -> dict[str, Any]:
    """What config.json of the engine folder would say; nothing is built."""
    engine = _plan(checkpoint, speculation, backend, **options).engine
    found: dict[str, Any] = json.loads(json.dumps(engine.to_dict()))
    return found


def exported_graphs(
    checkpoint: Path, speculation: Mapping[str, Any] | None, **options: Any
) -> Iterator[tuple[str, str, Callable[[], torch.export.ExportedProgram]]]:
    """Of the graphs that backend aoti would compile: the name in the engine folder, a key that
    equal ones share, and what exports it."""
    plan = _plan(checkpoint, speculation, "aoti", **options)
    for name, graph in engine_graphs(plan.engine).items():

        def export(graph: Graph = graph) -> torch.export.ExportedProgram:
            signature = graph.signature
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return torch.export.export(
                    graph.make().eval(),
                    signature.args,
                    dynamic_shapes=signature.dims,
                    strict=False,
                )

        yield name, graph_key(plan.engine, name), export


def run_build_command(arguments: Sequence[str]) -> str:
    """The last line that ``trtspec-build`` prints to the standard error."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.suppress(SystemExit):
        build_command.main(arguments)
    return (said.getvalue().strip().splitlines() or ["nothing"])[-1]
