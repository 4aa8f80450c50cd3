"""What the engines say that their steps had to read."""

from __future__ import annotations

from typing import Any

import pytest

from trtspec import SamplingParams

from ..e2e.helpers import TinyModels, chain, ngram, open_llm, random_prompt

PARAMS = SamplingParams(max_tokens=9, ignore_eos=True)


@pytest.mark.parametrize("speculation", [None, ngram(3)], ids=["none", "ngram"])
def test_a_step_reads_the_target_once(models: TinyModels, speculation: Any) -> None:
    prompt = random_prompt(0, 12)
    with open_llm(models.folder("llama"), speculation, max_batch_size=1) as llm:
        llm.generate(prompt, PARAMS)
        figures, target = llm.get_metrics(), llm.config.target
    steps = figures["num_verify_steps"]
    assert steps == figures["num_steps"] == figures["num_engine_steps"] - 1  # and the prefill
    assert figures["verify_weight_bytes"] == steps * 4 * target.matrix_elements
    if speculation is None:
        # The first step sees the prompt and its own row, the last one 7 rows more.
        seen = sum(range(13, 21))
        assert figures["verify_kv_bytes"] == seen * 4 * target.kv_elements_per_token


def test_a_rollout_reads_the_draft_once_a_step(models: TinyModels) -> None:
    prompts = [random_prompt(i, 12) for i in range(2)]
    spec = chain(models.draft("llama"), 3)
    with open_llm(models.folder("llama"), spec, max_batch_size=2) as llm:
        llm.generate(prompts, PARAMS, use_tqdm=False)
        figures, engine = llm.get_metrics(), llm.config
    assert engine.draft is not None
    rollouts = figures["num_draft_calls"] - 1  # the prefill feeds the prompts
    expected = figures["num_verify_steps"] * engine.target.matrix_elements
    expected += rollouts * 3 * engine.draft.matrix_elements
    assert figures["verify_weight_bytes"] == 4 * expected
    assert figures["verify_ms"] <= figures["step_ms"] * figures["num_engine_steps"]
