"""The benchmark program, and engine folders for it: a draft model's chain, EAGLE-3, EAGLE-1."""

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
from ..e2e.eagle_heads import save_right_heads
from .program import Program

LIMITS: dict[str, Any] = {"max_batch_size": 4, "max_seq_len": 256, "max_num_tokens": 64}
CHAIN = {"method": "draft_model", "num_speculative_tokens": 4}
STATIC = {"eagle_choices": [[0], [2], [0, 0], [2, 1], [0, 0, 0], [0, 0, 0, 0]]}
TREE = {"method": "eagle3", "num_speculative_tokens": 4, "topk": 3, "num_draft_tokens": 12}


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return Program(cpp_programs(tmp_path_factory)["trtspec_benchmark"])


def _engine(target: str | Path, draft: str | Path, speculation: dict[str, Any]) -> Path:
    wanted = parse_speculative_config({**speculation, "model": str(find_model(draft))})
    plan = plan_build(find_model(target), BuildConfig("float32", **LIMITS), wanted)
    return Path(cached_engine(plan))


@pytest.fixture(scope="session")
def chain_engine() -> Path:
    """trtspec-tiny with its draft model, a chain of 4."""
    return _engine("trtspec-tiny", "trtspec-tiny-draft", CHAIN)


@pytest.fixture(scope="session")
def eagle_engine() -> Path:
    """trtspec-tiny with its EAGLE-3 head, a tree (3, 4, 12)."""
    return _engine("trtspec-tiny", "trtspec-tiny-eagle3", TREE)


@pytest.fixture(scope="session")
def static_engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target with an EAGLE-1 head that is right half of the time, and a static tree."""
    heads = save_right_heads(tmp_path_factory.mktemp("right"), 3.0)
    return _engine(heads.target, heads.eagle1, {"method": "eagle", **STATIC})
