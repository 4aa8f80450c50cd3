"""Targets and drafts that keep states, compiled: the same by Python and by C++, of drafts whose
accepted ones are replayed, in chunks, with preemption, and on prefixes that snapshots of states are
kept of."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ..compiled_engines import build_one
from ..e2e.families import VOCAB, family_model
from ..e2e.helpers import TinyModels, random_prompt, tree
from .equality import assert_equal
from .program import Program, Sample

pytestmark = pytest.mark.slow

PROMPTS = [random_prompt(1, 30, VOCAB), random_prompt(2, 6, VOCAB) * 4]
SAMPLES: list[Sample] = [(prompt, 24) for prompt in 2 * PROMPTS]
SUFFIX = {"method": "suffix", "num_speculative_tokens": 6}
SUFFIX_FLAGS = ("--speculative", "suffix", "--max_draft_len", 6)
Engines = Callable[[str], tuple[Path, list[list[int]]]]


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Engines:
    """Of a family, an engine that drafts with a model of the family, and transformers' texts."""
    models = TinyModels(tmp_path_factory.mktemp("states"))
    models.hf = cache(family_model)

    @cache
    def engine(case: str) -> tuple[Path, list[list[int]]]:
        drafts = tree(models.draft(case), 2, 3, 8)
        sizes = {"max_seq_len": 100, "max_num_tokens": 16, "tokens_per_block": 4}
        folder = build_one(tmp_path_factory, models.folder(case), drafts, **sizes)
        return folder, [models.greedy(case, prompt, 24) for prompt in 2 * PROMPTS]

    return engine


@pytest.mark.parametrize("case", ["qwen3_5", "granite_hybrid"])
@pytest.mark.parametrize(
    ("speculation", "flags", "options", "temperature"),
    [
        (SUFFIX, SUFFIX_FLAGS, "snapshots", 0.0),  # drafts the second texts out of the first
        (None, (), "snapshots", 0.0),
        (None, (), "snapshots", 0.8),
        (None, (), "tight", 0.8),
    ],
    ids=["suffix", "greedy", "sampled", "tight"],
)
def test_python_and_cpp(
    program: Program,
    engines: Engines,
    tmp_path: Path,
    case: str,
    speculation: Any,
    flags: tuple[Any, ...],
    options: str,
    temperature: float,
) -> None:
    engine, texts = engines(case)
    expected = None if temperature else texts
    run = speculation, flags, options, temperature, SAMPLES
    figures = assert_equal(program, engine, tmp_path, *run, texts=expected)
    assert min(figures[name] for name in ("num_accepted_tokens", "num_draft_tokens")) > 0
    assert (figures["num_prefix_cache_hits"] > 0) == (options == "snapshots")
