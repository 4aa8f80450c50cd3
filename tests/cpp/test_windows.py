"""Targets and drafts with sliding windows, run by Python and by C++: the same tokens and steps.

A draft is its target with noise on the weights and, where the two have different windows, with
another one: so it is right now and then. `tests/e2e/test_families.py` compares such texts with
transformers', and so does one of these.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ..compiled_engines import build_one
from ..e2e.families import family_model
from ..e2e.helpers import TinyModels, random_prompt
from .equality import assert_equal
from .program import Program, Sample

pytestmark = [pytest.mark.slow, pytest.mark.matrix]

WINDOW = 8
WINDOWS: dict[str, tuple[int | None, int | None]] = {
    "target": (WINDOW, None),
    "draft": (None, WINDOW),
    "both": (WINDOW, WINDOW),
    "wider_draft": (WINDOW, 2 * WINDOW),
}
TREE = {"method": "draft_model", "num_speculative_tokens": 3, "topk": 2, "num_draft_tokens": 8}
LIMITS: dict[str, Any] = {"max_num_tokens": 32, "max_seq_len": 128, "tokens_per_block": 4}
LONG = [([*random_prompt(400 + i, n)], 120 - n) for i, n in enumerate((40, 1, 24, 33))]
"""Longer than the cache of `OPTIONS`' "tight", which is no matter where all layers have windows."""
SHORT = [([*random_prompt(410 + i, 20)], 60) for i in range(5)]
AGAIN = [*SHORT, ([*SHORT[0][0][:14], 5, 6], 40)]
"""Of the last one, which comes to a batch that is full, the beginning is cached."""

Engine = Callable[..., Path]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """Of an entry in `WINDOWS`, or of two layers of Gemma 2, one of which has a window; and of a
    backend."""
    models = TinyModels(tmp_path_factory.mktemp("windows"))
    families = TinyModels(tmp_path_factory.mktemp("families"))
    families.hf = cache(lambda case: family_model(case, num_hidden_layers=2))

    def windowed(folder: Path, window: int | None) -> Path:
        copy = folder.with_name(f"{folder.name}-{window}")
        if not copy.exists():
            shutil.copytree(folder, copy)
            config = json.loads((copy / "config.json").read_text())
            (copy / "config.json").write_text(json.dumps(config | {"sliding_window": window}))
        return copy

    @cache
    def make(case: str, backend: str = "aoti") -> Path:
        if case == "gemma2":
            target, draft = families.folder(case), families.draft(case)
        else:
            pair = (models.folder("mistral_window"), models.draft("mistral_window"))
            target, draft = map(windowed, pair, WINDOWS[case])
        speculation = {**TREE, "model": str(draft)}
        return build_one(tmp_path_factory, target, speculation, backend=backend, **LIMITS)

    return make


def holds_all(case: str) -> bool:
    """Whether some layer of either has no window."""
    return None in WINDOWS.get(case, (None, None))


@pytest.mark.parametrize("options", ["plain", "tight", "without_reuse"])
@pytest.mark.parametrize("case", ["both", "draft", "target", "wider_draft", "gemma2"])
def test_windows(program: Program, engine: Engine, tmp_path: Path, case: str, options: str) -> None:
    cases: list[Sample] = AGAIN if options != "tight" else SHORT if holds_all(case) else LONG
    temperature = 0.8 if options == "without_reuse" else 0.0
    metrics = assert_equal(program, engine(case), tmp_path, None, (), options, temperature, cases)
    assert metrics["num_accepted_tokens"] > 0


def test_text_is_that_of_transformers(program: Program, engine: Engine, tmp_path: Path) -> None:
    models = TinyModels(tmp_path / "models")
    samples = [(prompt, count) for prompt, count in LONG]
    expected = [models.greedy("mistral_window", prompt, count) for prompt, count in samples]
    flags = ("--temperature", 0, "--max_num_tokens", 9, "--kv_cache_max_tokens", 96)
    result = program.run(engine("both"), samples, tmp_path, *flags)
    assert result.tokens == expected
    assert result.figures["num_accepted_tokens"] > 0


@pytest.mark.parametrize("options", ["plain", "few_slots"])
@pytest.mark.parametrize("case", ["both", "draft", "gemma2"])
def test_masks_of_slots(
    program: Program, engine: Engine, tmp_path: Path, case: str, options: str
) -> None:
    """On backend onnx, where a window is a mask of its own."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    made, temperature = engine(case, "onnx"), 0.8 if options == "few_slots" else 0.0
    metrics = assert_equal(program, made, tmp_path, None, (), options, temperature, AGAIN)
    assert metrics["num_accepted_tokens"] > 0
