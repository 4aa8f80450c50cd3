"""A backend of another package, as its entry point names it: eager, with artifacts of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from trtspec.backends.eager import EagerBackend
from trtspec.backends.environment import Environment
from trtspec.backends.session import Session
from trtspec.backends.shape import EngineShape, Graph, NetworkShape
from trtspec.config.strict import strict_config
from trtspec.errors import EngineError

VERSION = "1"


@strict_config()
@dataclass(frozen=True)
class ToyOptions:
    """stamp: what stands in its artifacts."""

    stamp: str = "toy"


class ToyBackend(EagerBackend):
    """Its artifacts say which process made them, and of what; sessions want them to be there."""

    name = "toy"
    title = "the toy"
    makes_artifacts = True
    dtypes = ("float32",)
    no_dtype = "toys have no halves"
    options_class = ToyOptions
    report = "toy.txt"
    matched = frozenset({"toy"})

    def environment_here(self, device: str) -> Environment:
        return replace(super().environment_here(device), own={"toy": VERSION})

    def compile(self, graph: Graph, path: Path, device: str) -> None:
        count = sum(buffer.numel() for buffer in graph.make().buffers())
        path.write_text(f"{os.getpid()} {graph.name} of {count} numbers on {device}")

    def finish(self, engine: EngineShape, folder: Path) -> None:
        stamp = self.parse_options(engine.options).stamp
        files = sorted(graph.file for graph in self.graphs(engine))
        (folder / "toy.txt").write_text(f"{stamp}: {' '.join(files)}")

    def open(
        self,
        folder: Path,
        engine: EngineShape,
        network: NetworkShape,
        weights: Mapping[str, Tensor],
        graph_batches: Sequence[int] = (),
    ) -> dict[str, Session]:
        for graph in network.graphs:
            if f" {graph.name} of " not in (folder / graph.file).read_text():
                raise EngineError(f"{folder / graph.file} is no toy")
        return super().open(folder, engine, network, weights, graph_batches)


TOY = ToyBackend()
EAGER_AGAIN = EagerBackend()
