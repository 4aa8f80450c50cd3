"""Families compiled, run by Python and by C++: transformers' text. One of each kind of block.

Two layers of Gemma 2, one with a window, have the most of what the blocks of other families have:
norms at both places that multiply by 1 + w, soft caps, a scaled embedding, GELU gates. The others,
and trees of a draft model, bear the mark ``matrix``.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from trtspec import LLM, SamplingParams

from ..compiled_engines import TREE, build_one
from ..e2e.families import VOCAB, family_model
from ..e2e.helpers import TinyModels, ngram, random_prompt, tokens
from .program import Program

pytestmark = pytest.mark.slow

KINDS = {
    "gemma2": "soft caps, norms at both places, a scaled embedding",
    "cohere2": "parallel parts, layer norms, neighbours that turn, layers without rope",
    "olmo3": "norms behind, and over all queries and keys; a rope of its own under the window",
    "granite": "factors on embedding, scores, residuals and logits",
    "glm4": "a part of each head turns, neighbours with each other; norms at both places",
    "starcoder2": "layer norms with biases, no gate",
    "deepseek_v3": "caches of latents; a sigmoid router with groups, a shared expert",
    "mixtral": "experts behind a softmax, a window on all layers",
    "gpt_oss": "sinks, a router with biases, experts with biases and a cut gate",
    "gemma4": "K and V of earlier layers, larger heads without a window, per-layer embeddings",
}
PROMPTS = [random_prompt(1, 30, VOCAB), random_prompt(2, 6, VOCAB) * 4]


def test_two_layers(
    program: Program, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """Chunked prompts, and chains of n-grams: one graph."""
    models = TinyModels(tmp_path)
    models.hf = cache(lambda case: family_model(case, num_hidden_layers=2))
    expected = [models.greedy("gemma2", prompt, 24) for prompt in PROMPTS]
    engine = build_one(
        tmp_path_factory, models.folder("gemma2"), None, max_seq_len=100, max_num_tokens=16
    )
    with LLM(engine, ngram(4), skip_tokenizer_init=True) as llm:
        params = SamplingParams(max_tokens=24)
        assert tokens(llm.generate(PROMPTS, params, use_tqdm=False)) == expected
        assert llm.get_metrics()["num_draft_tokens"] > 0
    samples = [(prompt, 24) for prompt in PROMPTS]
    drafts = ("--speculative", "ngram", "--max_draft_len", 4, "--prompt_lookup_min", 1)
    result = program.run(engine, samples, tmp_path, "--temperature", 0, *drafts)
    assert result.tokens == expected
    assert result.figures["num_draft_tokens"] > 0


@pytest.mark.matrix
@pytest.mark.parametrize("case", KINDS)
def test_python_and_cpp(
    program: Program, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, case: str
) -> None:
    models = TinyModels(tmp_path)
    models.hf = cache(family_model)
    expected = [models.greedy(case, prompt, 24) for prompt in PROMPTS]
    draft = {**TREE, "method": "draft_model", "model": str(models.draft(case))}
    engine = build_one(tmp_path_factory, models.folder(case), draft, max_seq_len=100)
    with LLM(engine, skip_tokenizer_init=True) as llm:
        params = SamplingParams(max_tokens=24)
        assert tokens(llm.generate(PROMPTS, params, use_tqdm=False)) == expected
        assert llm.get_metrics()["num_accepted_tokens"] > 0
    samples = [(prompt, 24) for prompt in PROMPTS]
    result = program.run(engine, samples, tmp_path, "--temperature", 0)
    assert result.tokens == expected
    assert result.figures["num_accepted_tokens"] > 0
