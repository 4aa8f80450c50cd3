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
from trtspec.backends.session import Session
from trtspec.backends.shape import EngineShape, NetworkShape
from trtspec.backends.verifying import verifying
from trtspec.child_python import python_path
from trtspec.errors import BuildError
from trtspec.temporary import plain_folder, temporary_folder, temporary_trouble

_TORCH_CACHE = "TORCHINDUCTOR_CACHE_DIR"
_COMPILERS = ("g++", "clang++")
_NO_COMPILER = (
    "no C++ compiler found (looked for $CXX, g++, clang++); install one, for example the Debian "
    "package g++"
)


class AotiBackend(Backend):
    name = "aoti"
    title = "AOTInductor"
    compiler = "trtspec.backends.aoti.compile"

    def lacks(self) -> str | None:
        return None if os.environ.get("CXX") or _found(_COMPILERS) else _NO_COMPILER

    def compiler_variables(self) -> dict[str, str]:
        """The C++ compiler, and folder names that torch's command lines can hold."""
        compiler = _compiler()
        trouble = temporary_trouble()
        if trouble is not None:
            raise BuildError(trouble)
        folders = [plain_folder(folder) for folder in python_path() if os.path.exists(folder)]
        variables = {
            # Torch shall start no compiler processes in the worker: forks of the worker could not
            # share them.
            "TORCH_WARM_POOL": "0",
            "CXX": str(Path(plain_folder(str(compiler.parent)), compiler.name)),
            "TMPDIR": plain_folder(str(temporary_folder())),
            "PYTHONPATH": os.pathsep.join(folders),
        }
        kept = os.environ.get(_TORCH_CACHE)
        if kept:
            variables[_TORCH_CACHE] = plain_folder(os.path.abspath(kept))
        return variables

    def prepare_compiler(self) -> None:
        importlib.import_module(self.compiler).prepare()

    def verifies(self, engine: EngineShape) -> bool:
        """On CUDA; on a CPU the executor verifies with one call of C++."""
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
        verifies = network.is_target and self.verifies(engine)
        return verifying(opened, engine.rows) if verifies else opened


def _compiler() -> Path:
    """The C++ compiler: CXX, else the first one found."""
    chosen = os.environ.get("CXX")
    found = _found([chosen] if chosen else _COMPILERS)
    if found is not None:
        return Path(found).absolute()
    if chosen:
        raise BuildError(
            f"CXX names {chosen!r}, which is no program that can be run; name a C++ compiler "
            "there, without arguments, or unset it"
        )
    raise BuildError(_NO_COMPILER)


def _found(names: Sequence[str]) -> str | None:
    return next(filter(None, map(shutil.which, names)), None)
