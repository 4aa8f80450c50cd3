"""Families compiled, run by Python and by C++: transformers' text. One of each kind of block.

Gemma 2 has the most of what the blocks of other families have: norms at both places that multiply
by 1 + w, soft caps, a scaled embedding, windows, GELU gates. The others bear the mark ``matrix``.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from trtspec import LLM, SamplingParams

from ..compiled_engines import TREE, build_one
from ..e2e.families import VOCAB, family_model
from ..e2e.helpers import TinyModels, random_prompt, tokens
from .program import Program

pytestmark = pytest.mark.slow

KINDS = {
    "cohere2": "parallel parts, layer norms, neighbours that turn, layers without rope",
    "olmo3": "norms behind, and over all queries and keys; a rope of its own under the window",
    "granite": "factors on embedding, scores, residuals and logits",
    "glm4": "a part of each head turns, neighbours with each other; norms at both places",
    "starcoder2": "layer norms with biases, no gate",
    "deepseek_v3": "caches of latents",
    "gemma4": "K and V of earlier layers, larger heads without a window, per-layer embeddings",
}
PROMPTS = [random_prompt(1, 30, VOCAB), random_prompt(2, 6, VOCAB) * 4]


@pytest.mark.parametrize(
    "case", ["gemma2", *(pytest.param(case, marks=pytest.mark.matrix) for case in KINDS)]
)
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
