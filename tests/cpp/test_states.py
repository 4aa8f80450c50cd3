"""A target that keeps states, compiled: transformers' text by Python and by C++, of drafts whose
accepted ones are replayed, in chunks, and on prefixes that snapshots of states are kept of."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from trtspec import LLM, SamplingParams

from ..compiled_engines import build_one
from ..e2e.families import VOCAB, family_model
from ..e2e.helpers import TinyModels, assert_no_leak, random_prompt, tokens
from .program import Program

pytestmark = pytest.mark.slow

PROMPTS = [random_prompt(1, 30, VOCAB), random_prompt(2, 6, VOCAB) * 4]
FIGURES = ("num_prefix_cache_hits", "num_accepted_tokens", "num_draft_tokens")


def test_python_and_cpp(
    program: Program, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    models = TinyModels(tmp_path)
    models.hf = cache(family_model)
    expected = 2 * [models.greedy("qwen3_5", prompt, 24) for prompt in PROMPTS]
    sizes = {"max_seq_len": 100, "max_num_tokens": 16, "tokens_per_block": 4}
    engine = build_one(tmp_path_factory, models.folder("qwen3_5"), None, **sizes)
    kv = {"snapshot_blocks": 2}
    options = {"skip_tokenizer_init": True, "max_batch_size": 2, "kv_cache_config": kv}
    # The second time the texts of the first are drafted.
    with LLM(engine, {"method": "suffix", "num_speculative_tokens": 6}, **options) as llm:
        params = SamplingParams(max_tokens=24)
        assert tokens(llm.generate(2 * PROMPTS, params, use_tqdm=False)) == expected
        figures = llm.get_metrics()
        assert_no_leak(llm)
    samples = [(prompt, 24) for prompt in 2 * PROMPTS]
    drafts = ("--speculative", "suffix", "--max_draft_len", 6)
    caches = ("--max_batch_size", 2, "--kv_cache_snapshot_blocks", 2)
    result = program.run(engine, samples, tmp_path, "--temperature", 0, *drafts, *caches)
    assert result.tokens == expected
    metrics = result.report["metrics"]
    assert [metrics[name] for name in FIGURES] == [figures[name] for name in FIGURES]
    assert min(figures[name] for name in FIGURES) > 0
