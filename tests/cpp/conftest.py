"""The benchmark program, and engine folders for it: a draft model's chain, EAGLE-3, EAGLE-1,
drafts that guess in parallel, and several MTP modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trtspec.builder.build import cached_engine
from trtspec.builder.locate import find_model
from trtspec.builder.plan import plan_build
from trtspec.config.build import BuildConfig
from trtspec.config.speculative import parse_speculative_config

from ..cpp_build import cpp_programs
from ..e2e.eagle_heads import RightHeads, cycling_target
from ..e2e.mtp_modules import DEPTHS, save_deep
from ..e2e.parallel_drafts import right_pard, save_pard, save_right_p_eagle
from .program import Program

LIMITS: dict[str, Any] = {"max_batch_size": 4, "max_seq_len": 256, "max_num_tokens": 64}
CHAIN = {"method": "draft_model", "num_speculative_tokens": 4}
STATIC = {"eagle_choices": [[0], [2], [0, 0], [2, 1], [0, 0, 0], [0, 0, 0, 0]]}
TREE = {"method": "eagle3", "num_speculative_tokens": 4, "topk": 3, "num_draft_tokens": 12}


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return Program(cpp_programs(tmp_path_factory)["trtspec_benchmark"])


@pytest.fixture(scope="session")
def fake_program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """The same over stand-ins for TensorRT and CUDA."""
    return Program(cpp_programs(tmp_path_factory)["trtspec_benchmark_fake"])


def _engine(
    target: str | Path, draft: str | Path, speculation: dict[str, Any], backend: str = "aoti"
) -> Path:
    wanted = parse_speculative_config({**speculation, "model": str(find_model(draft))})
    build = BuildConfig("float32", **LIMITS, backend=backend)
    return Path(cached_engine(plan_build(find_model(target), build, wanted)))


@pytest.fixture(scope="session")
def chain_engine() -> Path:
    """trtspec-tiny with its draft model, a chain of 4."""
    return _engine("trtspec-tiny", "trtspec-tiny-draft", CHAIN)


@pytest.fixture(scope="session")
def eagle_engine() -> Path:
    """trtspec-tiny with its EAGLE-3 head, a tree (3, 4, 12)."""
    return _engine("trtspec-tiny", "trtspec-tiny-eagle3", TREE)


@pytest.fixture(scope="session")
def static_engine(right_heads: RightHeads) -> Path:
    """EAGLE-1 with a static tree."""
    return _engine(right_heads.target, right_heads.eagle1, {"method": "eagle", **STATIC})


@pytest.fixture(scope="session")
def parallel_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target with drafts of one pass, which are right half of the time."""
    root = tmp_path_factory.mktemp("parallel")
    cycling_target(5.0).save_pretrained(root / "target")
    save_pard(right_pard(5.0), root / "pard")
    save_right_p_eagle(root / "p_eagle", 5.0)
    return root


def _parallel(root: Path, backend: str) -> dict[str, Path]:
    """PARD with a wide tree (its rollout writes few rows for it), P-EAGLE with a chain."""
    tree = {"num_speculative_tokens": 3, "topk": 4, "num_draft_tokens": 10}
    shapes = {"pard": tree, "p_eagle": {"num_speculative_tokens": 3}}
    return {
        method: _engine(root / "target", root / method, {"method": method, **shape}, backend)
        for method, shape in shapes.items()
    }


@pytest.fixture(scope="session")
def parallel_engines(parallel_folder: Path) -> dict[str, Path]:
    return _parallel(parallel_folder, "aoti")


@pytest.fixture(scope="session")
def modules_engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target with MTP modules, each for a depth of its own."""
    folder = save_deep(tmp_path_factory.mktemp("deep"), "mimo")
    return _engine(folder, folder, {"method": "mtp", "num_speculative_tokens": DEPTHS})


@pytest.fixture(scope="session")
def onnx_engines(parallel_folder: Path, right_heads: RightHeads) -> dict[str, Path]:
    """What runs on backend onnx: the drafts of the engines above, as graphs of one pass, and a tree
    of a draft model."""
    heads = right_heads
    tree = {"method": "draft_model", "num_speculative_tokens": 3, "topk": 3}
    wanted: dict[str, tuple[str | Path, str | Path, dict[str, Any]]] = {
        "chain": ("trtspec-tiny", "trtspec-tiny-draft", CHAIN),
        "tree": ("trtspec-tiny", "trtspec-tiny-draft", {**tree, "num_draft_tokens": 10}),
        "eagle3": ("trtspec-tiny", "trtspec-tiny-eagle3", TREE),
        "static": (heads.target, heads.eagle1, {"method": "eagle", **STATIC}),
    }
    engines = {name: _engine(*pair, backend="onnx") for name, pair in wanted.items()}
    return {**engines, **_parallel(parallel_folder, "onnx")}


@pytest.fixture(scope="session")
def onnx_modules_engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The MTP modules of `modules_engine`."""
    folder = save_deep(tmp_path_factory.mktemp("deep"), "mimo")
    speculation = {"method": "mtp", "num_speculative_tokens": DEPTHS}
    return _engine(folder, folder, speculation, backend="onnx")
