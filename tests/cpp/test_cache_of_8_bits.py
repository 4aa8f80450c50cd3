"""A compiled engine that keeps K/V in another dtype than its own: Python and C++ give the same
tokens and steps, in a batch, under pressure and behind kept prefixes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..compiled_engines import build_one
from ..e2e.helpers import TinyModels, random_prompt, tree
from .equality import assert_equal
from .program import Program

pytestmark = [pytest.mark.slow, pytest.mark.matrix]

SAMPLES = [([*random_prompt(410 + i, 20)], 40) for i in range(5)]
SAMPLES += [([*SAMPLES[0][0][:14], 5, 6], 40)]


@pytest.fixture(scope="module", params=["int8", "float16"])
def engine(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    models = TinyModels(tmp_path_factory.mktemp("kept"))
    drafts = tree(models.draft("llama"), 2, 3, 8)
    limits = {"max_num_tokens": 32, "max_seq_len": 128, "tokens_per_block": 4}
    return build_one(
        tmp_path_factory, models.folder("llama"), drafts, kv_cache_dtype=request.param, **limits
    )


@pytest.mark.parametrize("options", ["plain", "tight"])
def test_equals_python(program: Program, engine: Path, tmp_path: Path, options: str) -> None:
    temperature = 0.8 if options == "tight" else 0.0
    metrics = assert_equal(program, engine, tmp_path, None, (), options, temperature, SAMPLES)
    assert metrics["num_accepted_tokens"] > 0
