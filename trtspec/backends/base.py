"""Backend: compiles the graphs of an engine and runs them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trtspec.backends.device import device_problem, total_memory
from trtspec.backends.environment import Environment
from trtspec.backends.session import Session
from trtspec.backends.shape import EngineShape, Graph, NetworkShape
from trtspec.config.model import DTYPES
from trtspec.config.strict import from_dict, strict_config
from trtspec.errors import ConfigError


@strict_config()
@dataclass(frozen=True)
class NoOptions:
    """The options of a backend without options."""


class Backend:
    """A way of compiling and running engines. Backends have no state: there is one object of each.

    name: for users. title: for sentences. runs_ops: its graphs call trtspec's ops, so that on a CPU
    floats may be stored in panels. is_portable: a graph is the same for all devices.
    makes_artifacts: whether `compile` makes anything. compiles_apart: graphs are compiled in
    separate processes, in parallel. keeps_weights: its engines hold weights of their own, and the
    weight files' contents stay on the host. captures_calls: CUDA graphs are captured inside its
    sessions. dtypes: in which it computes, the preferred fallback first; no_dtype: why it supports
    no others. options_class: the strict dataclass of a build's options. compiler: the module that
    makes its artifacts (see `compile`). report: a file in the engine folder about its graphs.
    matched: facts of an `Environment` that must be the same where an engine is opened; None: all.
    elsewhere: the flag that builds an engine for a device that is not present.
    """

    name: str
    title: str = ""
    runs_ops: bool = True
    is_portable: bool = False
    makes_artifacts: bool = True
    compiles_apart: bool = True
    keeps_weights: bool = False
    captures_calls: bool = False
    dtypes: tuple[str, ...] = DTYPES
    no_dtype: str = ""
    options_class: type[Any] = NoOptions
    compiler: str = ""
    report: str | None = None
    matched: frozenset[str] | None = None
    elsewhere: str = "--device cpu"

    # Options and defaults of a build.

    def parse_options(self, given: Mapping[str, Any]) -> Any:
        """The options of a build as an object; ConfigError for unknown ones and bad values."""
        return from_dict(self.options_class, given)

    def add_flags(self, parser: Any) -> None:
        """Add flags of trtspec-build for its options, each named after its option, with default
        None; ``parser``: an `argparse` group."""

    def resolve_device(self, asked: str) -> tuple[str, str | None]:
        """The device for auto, cpu or cuda, and the reason if it is not the requested one.

        Raises:
            ConfigError: the backend does not run on that device.
        """
        if asked != "auto":
            return asked, None
        found = torch.cuda.is_available()
        reason = f"torch finds {'a' if found else 'no'} CUDA device"
        return ("cuda" if found else "cpu"), reason

    def check_options(self, options: Any, dtype: str) -> None:
        """Raise ConfigError if an engine with these options cannot compute in ``dtype``."""

    def complete(self, options: Any) -> tuple[Any, list[str]]:
        """The options with open choices decided by what is possible here, and the reasons.
        ConfigError if a request is impossible."""
        return options, []

    def options_differ(self, asked: Any, built: Any) -> bool:
        """Whether an engine was built with other options than requested; defaults request
        nothing."""
        return bool(asked not in (self.options_class(), built))

    def drafts_by_pass(self, device: str) -> bool:
        """Whether drafts that support it are rolled out by calls of one pass each, in a loop that
        stops when the next pass does not pay: on a CPU, where a call costs little compared to a
        pass."""
        return device == "cpu" and self.runs_ops

    def has_slots(self, options: Any) -> bool:
        """Whether a sequence has one slot of the cache instead of blocks."""
        return False

    # The environment.

    def device_problem(self, device: str) -> str | None:
        """See `trtspec.backends.device.device_problem`."""
        return device_problem(device)

    def environment_here(self, device: str) -> Environment:
        """What engines depend on here, for a device without a `device_problem`. ConfigError, naming
        the extra, if a package that runs them is missing."""
        return Environment.here(device)

    def environment_to_build(self, device: str, options: Any) -> Environment:
        """What an engine built here will depend on.

        Raises:
            ConfigError, BuildError: it cannot be built here.
        """
        problem = self.device_problem(device)
        if problem is not None:
            raise ConfigError(
                f"device {device!r} was asked for, but {problem}, or give device 'cpu'"
            )
        return self.environment_here(device)

    def memory_to_build_for(self, device: str, options: Any) -> int | None:
        """Bytes of memory of the device that an engine will run on; None: unknown."""
        return total_memory(device)

    def misfits(self, built: Environment, device: str) -> list[str]:
        """The facts in which this machine differs from the one that built an engine, with both
        values; of processor instructions, those that are missing."""
        here = self.environment_here(device)
        was, now = built.facts, here.facts
        was["instructions"], now["instructions"] = " ".join(here.lacks(built)), ""
        return [
            f"{key} {value} (here {now.get(key) or 'missing'})"
            for key, value in was.items()
            if (self.matched is None or key in self.matched) and value != now.get(key)
        ]

    # Graphs.

    def graphs(self, engine: EngineShape) -> list[Graph]:
        """The graphs to compile, or to run."""
        return [graph for network in engine.networks for graph in network.graphs]

    def lacks(self) -> str | None:
        """What is missing here to compile graphs, with the remedy; None: nothing, or not known
        yet."""
        return None

    def compiler_variables(self) -> dict[str, str]:
        """Additional environment variables for the processes that compile.

        Raises:
            BuildError: what compiles graphs is missing, or cannot work here.
        """
        return {}

    def prepare_compiler(self) -> None:
        """Import the compiler and let it detect this machine. The processes that compile are forks
        of the one that calls this."""
        if self.compiler:
            importlib.import_module(self.compiler)

    def compile(self, graph: Graph, path: Path, device: str) -> None:
        """Make the artifact of a graph for a device. An artifact depends only on shapes.

        By default ``compile_graph(graph, path, device)`` of the module `compiler` makes it. That
        module is only imported here, as compilers take seconds to import.

        Raises:
            BuildError: it could not be made.
        """
        importlib.import_module(self.compiler).compile_graph(graph, path, device)

    def finish(self, engine: EngineShape, folder: Path) -> None:
        """Finish an engine folder that has its weights and artifacts.

        Raises:
            BuildError: it failed.
        """

    # Sessions.

    def verifies(self, engine: EngineShape) -> bool:
        """Whether the target's session samples and accepts by itself (see `EngineInputs`): in its
        graph, or by ops after it (see `trtspec.backends.verifying`)."""
        return False

    def open(
        self,
        folder: Path,
        engine: EngineShape,
        network: NetworkShape,
        weights: Mapping[str, Tensor],
        graph_batches: Sequence[int] = (),
    ) -> dict[str, Session]:
        """The sessions of a network, by graph name.

        ``weights``: all constants of the network, including borrowed ones; sessions use this
        memory. ``graph_batches``: ascending numbers of requests, for a backend that captures calls
        itself: it pads calls to these sizes and, on CUDA, captures them.

        Raises:
            EngineError: artifacts are missing or do not fit.
        """
        raise NotImplementedError
