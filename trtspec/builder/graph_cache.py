"""The cache of compiled graphs: each distinct one is compiled once, several side by side."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path

from trtspec.builder.locate import cache_root
from trtspec.builder.onnx import export_graph
from trtspec.builder.sources import hash_of, sources_of
from trtspec.child_python import python_command, python_environment
from trtspec.engine.drafts import DRAFT_ROLLOUT, DRAFT_STEP
from trtspec.engine.folder import EngineConfig, Environment
from trtspec.engine.graphs import draft_of, module_of
from trtspec.engine.lowering import lower
from trtspec.errors import BuildError
from trtspec.log import logger, progress
from trtspec.ops.host import usable_cpus

_MAKERS = ("trtspec.builder.compile_worker", "trtspec.builder.onnx")
"""The modules that make a graph. Its code comes from these and from all that they import."""

_BY_VALUE = ("trtspec.engine.folder", "trtspec.engine.engine_draft")
"""What only reads and writes an engine's contract: all that a graph takes of that is among the
values in its key. A file that is missing here costs a compilation, never a stale graph."""


def graph_key(engine: EngineConfig, name: str) -> str:
    """A key over everything the compiled code depends on: shapes, source and environment."""
    target = _shape(engine.target.to_dict())
    build = engine.build
    # An ONNX graph is the same for all devices.
    device = "cpu" if build.has_slots else build.device
    facts: list[object] = [build.backend, device, build.dtype, asdict(engine.layout), target]
    facts += [build.weight_dtype, build.weight_group_size]
    found = draft_of(engine, name)
    if found is None:
        facts += [name, engine.capture_layers]
        if build.accepts_in_engine:
            facts.append(engine.speculative_rows)
    else:
        draft, own_name = found  # wherever it lies
        facts += [own_name, draft.network.kind, _shape(draft.network.to_dict())]
        tree = draft.speculation.tree
        if own_name == DRAFT_ROLLOUT:
            facts.append(asdict(tree))
        elif own_name == DRAFT_STEP:
            facts.append(asdict(tree.first_step))
    environment = Environment.here(device).facts
    text = json.dumps([facts, _source_hash(), environment], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@cache
def _source_hash() -> str:
    """Of the files that make graphs, which the running process has imported already."""
    return hash_of(sources_of(_MAKERS, _BY_VALUE))


def place_graphs(engine: EngineConfig, names: Sequence[str], folder: Path) -> None:
    """Put the packages of these graphs into an engine folder; those never seen are compiled, as
    many at a time as there are cores.

    Raises:
        BuildError: no C++ compiler, or a compilation failed.
    """
    root = cache_root() / "compiled"
    stored = {name: root / f"{graph_key(engine, name)}{Path(name).suffix}" for name in names}
    missing = [name for name in names if not stored[name].exists()]
    for name in names:
        if name not in missing:
            logger.info("compile %s: reused a graph compiled before", name)
    if missing:
        make_all = _export_all if engine.build.has_slots else _compile_all
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root) as scratch:
            packages = {name: Path(scratch) / name.replace("/", "-") for name in missing}
            with progress(f"compile {', '.join(missing)}"):
                make_all(engine, packages)
            for name, package in packages.items():
                package.replace(stored[name])
    for name, package in stored.items():
        shutil.copyfile(package, folder / name)


def _export_all(engine: EngineConfig, packages: dict[str, Path]) -> None:
    """Export here: a process for each graph would take longer to start than to export."""
    for name, package in packages.items():
        export_graph(lower(engine, name, module_of(engine, name)), package)


def _compile_all(engine: EngineConfig, packages: dict[str, Path]) -> None:
    """In processes of their own, side by side."""
    _require_compiler()
    if engine.build.device == "cpu":
        _run_worker(engine, packages)
        return
    with ThreadPoolExecutor(usable_cpus()) as pool:
        each = [{name: package} for name, package in packages.items()]
        list(pool.map(partial(_run_worker, engine), each))


def _run_worker(engine: EngineConfig, packages: dict[str, Path]) -> None:
    """Compile these; the first failure stops the others."""
    job = {
        "engine": engine.to_dict(),
        "packages": {name: str(package) for name, package in packages.items()},
    }
    # Torch shall start no processes in the worker for a compiler that forks of it do not share.
    environment = python_environment(TORCH_WARM_POOL="0")
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        worker = subprocess.Popen(
            python_command("-m", "trtspec.builder.compile_worker"),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            text=True,
            env=environment,
            start_new_session=True,  # it and all that it starts are stopped together
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
            said = log.read().strip()
            raise BuildError(said or f"the compiler ended with status {worker.returncode}")


def _shape(config: dict[str, object]) -> dict[str, object]:
    """A model's config without the fields that no graph depends on."""
    nested = {k: _shape(v) for k, v in config.items() if isinstance(v, dict)}
    kept = {k: v for k, v in config.items() if k not in ("bos_token_id", "eos_token_ids")}
    return {**kept, **nested}


def _require_compiler() -> None:
    names = (os.environ.get("CXX", ""), "g++", "clang++")
    if not any(shutil.which(name) for name in names if name):
        raise BuildError(
            "no C++ compiler found (looked for $CXX, g++, clang++); install one, for example "
            "the Debian package g++"
        )
