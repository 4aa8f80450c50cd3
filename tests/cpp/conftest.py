"""The benchmark program, and engine folders for it: a draft model's chain, EAGLE-3, EAGLE-1,
drafts that guess in parallel, and several MTP modules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trtspec.builder.locate import find_model

from ..compiled_engines import CHAIN, PARD_TREE, STATIC, TREE, build_one
from ..cpp_build import cpp_programs
from ..e2e.eagle_heads import RightHeads, cycling_target
from ..e2e.mtp_modules import DEPTHS, save_deep
from ..e2e.parallel_drafts import right_pard, save_pard, save_right_p_eagle
from .program import Program

Build = Callable[..., Path]
"""Of a target and a draft, names or folders, with options of the method; ``backend``: another."""


@pytest.fixture(scope="session")
def program() -> Program:
    return Program(cpp_programs()["trtspec_benchmark"])


@pytest.fixture(scope="session")
def fake_program() -> Program:
    """The same over stand-ins for TensorRT and CUDA."""
    return Program(cpp_programs()["trtspec_benchmark_fake"])


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    def engine(
        target: str | Path, draft: str | Path, speculation: dict[str, Any], backend: str = "aoti"
    ) -> Path:
        wanted = {**speculation, "model": str(find_model(draft))}
        return build_one(tmp_path_factory, find_model(target), wanted, backend=backend)

    return engine


@pytest.fixture(scope="session")
def chain_engine(build: Build) -> Path:
    """trtspec-tiny with its draft model, a chain of 4."""
    return build("trtspec-tiny", "trtspec-tiny-draft", CHAIN)


@pytest.fixture(scope="session")
def eagle_engine(build: Build) -> Path:
    """trtspec-tiny with its EAGLE-3 head, a tree (3, 4, 12)."""
    return build("trtspec-tiny", "trtspec-tiny-eagle3", TREE)


@pytest.fixture(scope="session")
def static_engine(build: Build, right_heads: RightHeads) -> Path:
    """EAGLE-1 with a static tree."""
    return build(right_heads.target, right_heads.eagle1, {"method": "eagle", **STATIC})


@pytest.fixture(scope="session")
def parallel_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target with drafts of one pass, which are right half of the time."""
    root = tmp_path_factory.mktemp("parallel")
    cycling_target(5.0).save_pretrained(root / "target")
    save_pard(right_pard(5.0), root / "pard")
    save_right_p_eagle(root / "p_eagle", 5.0)
    return root


PARALLEL = {"pard": PARD_TREE, "p_eagle": {"num_speculative_tokens": 3}}
"""PARD with a wide tree, P-EAGLE with a chain."""


def _parallel(build: Build, root: Path, method: str, backend: str) -> Path:
    speculation = {"method": method, **PARALLEL[method]}
    return build(root / "target", root / method, speculation, backend)


@pytest.fixture(scope="session")
def parallel_engine(build: Build, parallel_folder: Path) -> Callable[[str], Path]:
    """Of a method in `PARALLEL`."""
    return lambda method: _parallel(build, parallel_folder, method, "aoti")


@pytest.fixture(scope="session")
def modules_engine(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target with MTP modules, each for a depth of its own."""
    folder = save_deep(tmp_path_factory.mktemp("deep"), "mimo")
    return build(folder, folder, {"method": "mtp", "num_speculative_tokens": DEPTHS})


@pytest.fixture(scope="session")
def onnx_engines(build: Build, parallel_folder: Path, right_heads: RightHeads) -> dict[str, Path]:
    """What runs on backend onnx, each built when first asked for: the drafts of the engines above,
    as graphs of one pass, and a tree of a draft model."""
    heads = right_heads
    tree = {"method": "draft_model", "num_speculative_tokens": 3, "topk": 3}
    wanted: dict[str, tuple[str | Path, str | Path, dict[str, Any]]] = {
        "chain": ("trtspec-tiny", "trtspec-tiny-draft", CHAIN),
        "tree": ("trtspec-tiny", "trtspec-tiny-draft", {**tree, "num_draft_tokens": 10}),
        "eagle3": ("trtspec-tiny", "trtspec-tiny-eagle3", TREE),
        "static": (heads.target, heads.eagle1, {"method": "eagle", **STATIC}),
    }

    class Built(dict[str, Path]):
        def __missing__(self, name: str) -> Path:
            if name in PARALLEL:
                folder = _parallel(build, parallel_folder, name, "onnx")
            else:
                folder = build(*wanted[name], backend="onnx")
            return self.setdefault(name, folder)

    return Built()


@pytest.fixture(scope="session")
def onnx_modules_engine(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The MTP modules of `modules_engine`."""
    folder = save_deep(tmp_path_factory.mktemp("deep"), "mimo")
    speculation = {"method": "mtp", "num_speculative_tokens": DEPTHS}
    return build(folder, folder, speculation, backend="onnx")
