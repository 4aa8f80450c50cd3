"""AotiBackend: every graph is an AOTInductor package."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from trtspec.backends.aoti.session import AotiSession
from trtspec.backends.base import Backend
from trtspec.backends.judging import judging
from trtspec.backends.session import Session
from trtspec.backends.shape import EngineShape, NetworkShape
from trtspec.errors import BuildError


class AotiBackend(Backend):
    name = "aoti"
    title = "AOTInductor"
    compiler = "trtspec.backends.aoti.compile"

    def require_compiler(self) -> None:
        names = (os.environ.get("CXX", ""), "g++", "clang++")
        if not any(shutil.which(name) for name in names if name):
            raise BuildError(
                "no C++ compiler found (looked for $CXX, g++, clang++); install one, for example "
                "the Debian package g++"
            )

    def prepare_compiler(self) -> None:
        importlib.import_module(self.compiler).prepare()

    def judges(self, engine: EngineShape) -> bool:
        """On CUDA; on a CPU the executor has it done by one call of C++."""
        return engine.device == "cuda"

    def open(
        self,
        folder: Path,
        engine: EngineShape,
        network: NetworkShape,
        weights: Mapping[str, Tensor],
        graph_batches: Sequence[int] = (),
    ) -> dict[str, Session]:
        opened: dict[str, Session] = {
            graph.name: AotiSession(folder / graph.file, weights, engine.device)
            for graph in network.graphs
        }
        judges = network.is_target and self.judges(engine)
        return judging(opened, engine.rows) if judges else opened
