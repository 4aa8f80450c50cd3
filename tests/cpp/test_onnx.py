"""Engine folders of backend onnx: run by Python and by the C++ runtime, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from ..e2e.helpers import ngram
from .equality import (
    assert_equal,
    changes_of_logits,
    cycling_samples,
    deep_samples,
    samples,
)
from .program import Program, write_samples
from .test_bad_input import cut, flags, removed

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

pytestmark = pytest.mark.slow

NGRAM_FLAGS = ("--speculative", "ngram", "--max_draft_len", 6, "--prompt_lookup_min", 1)
SHALLOW = {
    "method": "eagle3", "model": "draft", "num_speculative_tokens": 2, "topk": 3,
    "num_draft_tokens": 12,
}  # fmt: skip


@pytest.mark.parametrize("temperature", [0.0, 0.8], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    ("speculation", "given"),
    [(False, ("--speculative", "none")), (ngram(6), NGRAM_FLAGS)],
    ids=["none", "ngram"],
)  # fmt: skip
def test_without_a_draft(
    program: Program,
    onnx_engines: dict[str, Path],
    tmp_path: Path,
    speculation: Any,
    given: tuple[Any, ...],
    temperature: float,
) -> None:
    engine = onnx_engines["chain"]
    assert_equal(program, engine, tmp_path, speculation, given, "plain", temperature)


@pytest.mark.parametrize("options", ["plain", "few_slots"])
@pytest.mark.parametrize(
    "draft", ["chain", pytest.param("tree", marks=pytest.mark.matrix), "eagle3"]
)
def test_drafts_of_the_embedded_target(
    program: Program, onnx_engines: dict[str, Path], tmp_path: Path, draft: str, options: str
) -> None:
    metrics = assert_equal(program, onnx_engines[draft], tmp_path, None, (), options, 0.8)
    assert metrics["acceptance_length"] > 1.2


def test_a_shallow_tree(program: Program, onnx_engines: dict[str, Path], tmp_path: Path) -> None:
    given = ("--max_draft_len", 2)
    engine = onnx_engines["eagle3"]
    assert_equal(program, engine, tmp_path, SHALLOW, given, "without_reuse", 0.0)


@pytest.mark.matrix
@pytest.mark.parametrize("draft", ["chain", "eagle3"])
def test_changed_logits(
    program: Program, onnx_engines: dict[str, Path], tmp_path: Path, draft: str
) -> None:
    cases, changes = samples()[:5], changes_of_logits()
    assert_equal(program, onnx_engines[draft], tmp_path, None, (), "plain", 0.8, cases, changes)


@pytest.mark.parametrize("draft", ["static", "pard", "p_eagle"])
def test_right_drafts(
    program: Program, onnx_engines: dict[str, Path], tmp_path: Path, draft: str
) -> None:
    """EAGLE-1 with a static tree, and drafts of one pass."""
    cases = cycling_samples()
    metrics = assert_equal(program, onnx_engines[draft], tmp_path, None, (), "plain", 0.8, cases)
    assert metrics["acceptance_length"] > 1.2


@pytest.mark.parametrize("temperature", [0.0, 0.8], ids=["greedy", "sampled"])
def test_mtp_modules(
    program: Program, onnx_modules_engine: Path, tmp_path: Path, temperature: float
) -> None:
    """Each drafts at its own depth."""
    cases = deep_samples()
    metrics = assert_equal(
        program, onnx_modules_engine, tmp_path, None, (), "plain", temperature, cases
    )
    assert metrics["acceptance_length"] > 1.8


BROKEN = {
    "no_graph": (removed("target.onnx"), ("target.onnx is missing", "trtspec-build")),
    "graph": (cut("target.onnx", 5000), ("target.onnx cannot be loaded", "trtspec-build")),
    "no_pass": (removed("draft-pass.onnx"), ("draft-pass.onnx is missing", "trtspec-build")),
}


@pytest.mark.parametrize("name", BROKEN)
def test_damaged_engine(
    program: Program, onnx_engines: dict[str, Path], tmp_path: Path, name: str
) -> None:
    damage, named = BROKEN[name]
    folder = tmp_path / "engine"
    shutil.copytree(onnx_engines["chain"], folder)
    damage(folder)
    data = write_samples(tmp_path / "samples.json", [([5, 6, 7], 4)])
    status, line = program.refuse(*flags(folder, data))
    assert status == 1
    assert all(part in line for part in (str(folder), *named)), line


def test_no_onnxruntime(program: Program, onnx_engines: dict[str, Path], tmp_path: Path) -> None:
    """A library that is not there, and one that is another."""
    data = write_samples(tmp_path / "samples.json", [([5, 6, 7], 4)])
    for library, reason in (
        (tmp_path / "absent.so", "absent.so: cannot open"),
        ("libm.so.6", "libm.so.6 is not ONNX Runtime"),
    ):
        more = ("--onnxruntime", library)
        status, line = program.refuse(*flags(onnx_engines["chain"], data, *more))
        assert status == 1
        assert all(part in line for part in (reason, "pip install onnxruntime", "--onnxruntime"))


def test_too_small_a_cache(program: Program, onnx_engines: dict[str, Path], tmp_path: Path) -> None:
    data = write_samples(tmp_path / "samples.json", [([5, 6, 7], 4)])
    more = ("--kv_cache_max_tokens", 300)
    status, line = program.refuse(*flags(onnx_engines["chain"], data, *more))
    assert status == 1 and "300 tokens, less than one slot of 384" in line
