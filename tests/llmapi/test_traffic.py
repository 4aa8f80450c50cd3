"""What the engines say that their steps had to read."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from trtspec import SamplingParams
from trtspec.config.model import ModelConfig

from ..e2e.families import VOCAB, family_model
from ..e2e.helpers import TinyModels, chain, ngram, open_llm, random_prompt
from ..tiny_config import attention_of, dense_of


def num_weights(config: ModelConfig) -> int:
    """Those of the matrices of a Llama."""
    mixer, hidden = attention_of(config), config.hidden_size
    heads = 2 * (mixer.num_heads + mixer.num_kv_heads) * mixer.head_dim
    layer = heads * hidden + 3 * hidden * dense_of(config).intermediate_size
    return config.num_layers * layer + config.vocab_size * hidden


def kv_elements(config: ModelConfig) -> int:
    mixer = attention_of(config)
    return config.num_layers * 2 * mixer.num_kv_heads * mixer.head_dim


PARAMS = SamplingParams(max_tokens=9, ignore_eos=True)


@pytest.mark.parametrize("speculation", [None, ngram(3)], ids=["none", "ngram"])
def test_a_step_reads_the_target_once(models: TinyModels, speculation: Any) -> None:
    prompt = random_prompt(0, 12)
    with open_llm(models.folder("llama"), speculation, max_batch_size=1) as llm:
        llm.generate(prompt, PARAMS)
        figures, target = llm.get_metrics(), llm.config.target
    steps = figures["num_verify_steps"]
    assert steps == figures["num_steps"] == figures["num_engine_steps"] - 1  # and the prefill
    assert figures["verify_weight_bytes"] == steps * 4 * num_weights(target)
    if speculation is None:
        # The first step sees the prompt and its own row, the last one 7 rows more.
        seen = sum(range(13, 21))
        assert figures["verify_kv_bytes"] == seen * 4 * kv_elements(target)


def test_a_mixture_reads_the_experts_that_its_rows_choose(tmp_path: Path) -> None:
    """One row a step chooses as many as the spec says; rows of drafts choose more, but not all."""
    models = TinyModels(tmp_path)
    models.hf = cache(lambda case: family_model(case, num_local_experts=12))
    prompt, read = random_prompt(1, 6, VOCAB) * 3, []
    for speculation in (None, ngram(4)):
        with open_llm(models.folder("mixtral"), speculation, max_batch_size=1) as llm:
            llm.generate(prompt, PARAMS)
            figures, config = llm.get_metrics(), llm.config
            read.append(figures["verify_weight_bytes"] / figures["num_verify_steps"])
    known = config.pass_bytes()
    # The ops read whole panels of 64 outputs: here 192 of 176, and 64 of 64.
    padded = (192 * 64 + 64 * 88) / (176 * 64 + 64 * 88)
    assert read[0] == known.always + round(padded * known.of_experts(1))
    assert read[0] < read[1] < known.always + padded * known.of_experts(1000)


def test_a_pass_reads_the_draft_once(models: TinyModels) -> None:
    prompts = [random_prompt(i, 12) for i in range(2)]
    spec = chain(models.draft("llama"), 3)
    with open_llm(models.folder("llama"), spec, max_batch_size=2) as llm:
        llm.generate(prompts, PARAMS, use_tqdm=False)
        figures, engine = llm.get_metrics(), llm.config
    assert isinstance(engine.drafts[0].network, ModelConfig)
    passes = figures["num_draft_calls"] - 1  # the prefill feeds the prompts
    expected = figures["num_verify_steps"] * num_weights(engine.target)
    expected += passes * num_weights(engine.drafts[0].network)
    assert figures["verify_weight_bytes"] == 4 * expected
    assert figures["verify_ms"] <= figures["step_ms"] * figures["num_engine_steps"]
