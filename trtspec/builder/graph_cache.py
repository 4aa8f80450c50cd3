"""The cache of compiled graphs: each distinct graph is compiled once, several in parallel."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path

from trtspec.backends.base import Backend
from trtspec.backends.environment import Environment
from trtspec.builder.locate import cache_root
from trtspec.builder.scratch import scratch_folder
from trtspec.builder.sources import PACKAGE, hash_of, sources_of
from trtspec.child_python import python_command, python_environment
from trtspec.config.strict import to_dict
from trtspec.engine.folder import EngineConfig
from trtspec.engine.graphs import draft_of, engine_graphs
from trtspec.errors import BuildError
from trtspec.log import logger, progress
from trtspec.ops.host import usable_cpus
from trtspec.speculative.draft_kind import DRAFT_PASS, DRAFT_ROLLOUT, DRAFT_STEP

_MAKERS = ("trtspec.builder.compile_worker",)
"""Modules that make a graph, besides the backend's. A graph's code comes from these and everything
they import."""

_BY_VALUE = (
    "trtspec.engine.folder",
    "trtspec.engine.engine_draft",
    "trtspec.speculative.registry",
    "trtspec.backends.registry",
)
"""Modules that only read and write an engine's contract, or look up its backend and methods. Graphs
depend on their values only, which are part of the key. A module that is missing here costs a
compilation, never a stale graph."""


def graph_key(engine: EngineConfig, name: str) -> str:
    """A key over everything that the compiled code depends on: shapes, sources and environment."""
    graph, build = engine_graphs(engine)[name], engine.build
    device = "cpu" if engine.backend.is_portable else build.device
    facts: list[object] = [engine.backend.name, device, build.dtype, asdict(engine.layout)]
    facts += [_shape(engine.target.to_dict()), build.weight_dtype, build.weight_group_size]
    facts += [build.head_weight_dtype, build.embedding_weight_dtype, build.activation_dtype]
    facts += [graph.name, graph.facts]
    draft = draft_of(engine, graph)
    if draft is None:
        facts.append(engine.capture_layers)
    else:  # the draft's folder does not matter
        stored = None if draft.storage is None else to_dict(draft.storage)
        facts += [draft.network.kind, _shape(draft.network.to_dict()), stored]
        facts += [] if draft.weights is None else [to_dict(draft.weights)]
        tree = draft.speculation.tree
        if graph.name == DRAFT_ROLLOUT:
            facts.append(asdict(tree))
        elif graph.name == DRAFT_STEP:
            facts.append(asdict(tree.first_step))
        elif graph.name == DRAFT_PASS:
            facts.append(tree.topk)
    makers = graph_makers(engine.backend)
    sources = source_hash(makers if draft is None else (*makers, draft.kind.home))
    text = json.dumps([facts, sources, Environment.here(device).facts], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def graph_makers(backend: Backend) -> tuple[str, ...]:
    """A backend's modules that define and compile its graphs."""
    own = type(backend).__module__
    return (own, backend.compiler) if backend.compiler else (own,)


def graph_sources(makers: Sequence[str], package: Path = PACKAGE) -> dict[str, Path]:
    """The files whose code makes graphs: a backend's `graph_makers` and, for a draft's graphs, the
    `DraftKind.home`, in whichever package. So a new method changes no graph of another."""
    return sources_of((*_MAKERS, *makers), _BY_VALUE, package)


@cache
def source_hash(makers: tuple[str, ...]) -> str:
    """Hash of `graph_sources`."""
    return hash_of(graph_sources(makers))


def place_graphs(engine: EngineConfig, names: Sequence[str], folder: Path) -> None:
    """Put the artifacts of these graphs into an engine folder, compiling new ones, as many in
    parallel as there are cores.

    Raises:
        BuildError: a compiler is missing, or a compilation failed.
    """
    stored = kept_graphs(engine, names)
    missing = [name for name in names if not stored[name].exists()]
    for name in names:
        if name not in missing:
            logger.info("compile %s: reused a graph compiled before", name)
    if missing:
        make_all = _compile_all if engine.backend.compiles_apart else _compile_here
        with scratch_folder(compiled_root() / "graphs") as scratch:
            packages = {name: scratch / name.replace("/", "-") for name in missing}
            with progress(f"compile {', '.join(missing)}"):
                make_all(engine, packages)
            for name, package in packages.items():
                package.replace(stored[name])
    for name, package in stored.items():
        shutil.copyfile(package, folder / name)


def compiled_root() -> Path:
    """The folder of compiled graphs."""
    return cache_root() / "compiled"


def kept_graphs(engine: EngineConfig, names: Sequence[str]) -> dict[str, Path]:
    """Where the artifacts of these graphs are once they are compiled."""
    return {
        name: compiled_root() / f"{graph_key(engine, name)}{Path(name).suffix}" for name in names
    }


def _compile_here(engine: EngineConfig, packages: dict[str, Path]) -> None:
    graphs = engine_graphs(engine)
    engine.backend.compiler_variables()
    for name, package in packages.items():
        engine.backend.compile(graphs[name], package, engine.build.device)


def _compile_all(engine: EngineConfig, packages: dict[str, Path]) -> None:
    """Compile in separate processes, in parallel."""
    variables = engine.backend.compiler_variables()
    if engine.build.device == "cpu":
        _run_worker(engine, variables, packages)
        return
    with ThreadPoolExecutor(usable_cpus()) as pool:
        each = [{name: package} for name, package in packages.items()]
        list(pool.map(partial(_run_worker, engine, variables), each))


def _run_worker(
    engine: EngineConfig, variables: Mapping[str, str], packages: dict[str, Path]
) -> None:
    """Compile these graphs; the first failure stops the others."""
    job = {
        "engine": engine.to_dict(),
        "packages": {name: str(package) for name, package in packages.items()},
    }
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        worker = subprocess.Popen(
            python_command("-m", "trtspec.builder.compile_worker"),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            text=True,
            env=python_environment(**variables),
            start_new_session=True,  # the worker and all that it starts are stopped together
        )
        try:
            worker.communicate(json.dumps(job))
        finally:
            if worker.returncode != 0:
                with suppress(ProcessLookupError):
                    os.killpg(worker.pid, signal.SIGKILL)
                worker.wait()
        if worker.returncode:
            log.seek(0)
            said = _failure(log.read().strip())
            raise BuildError(said or f"the compiler ended with status {worker.returncode}")


def _failure(said: str) -> str:
    """The worker's message about a failed graph, without earlier output of libraries."""
    before, mark, what = said.partition(" did not compile: ")
    return before.rpartition("\n")[2] + mark + what if mark else said


def _shape(config: dict[str, object]) -> dict[str, object]:
    """A model's config without the fields that no graph depends on."""
    nested = {k: _shape(v) for k, v in config.items() if isinstance(v, dict)}
    kept = {k: v for k, v in config.items() if k not in ("bos_token_id", "eos_token_ids")}
    return {**kept, **nested}
