"""Greedy text equals transformers' token for token in float32, however it is computed."""

from __future__ import annotations

from typing import Any

import pytest

from trtspec import LLM, SamplingParams

from ..models.tiny_hf import CASES
from .helpers import (
    TinyModels,
    assert_no_leak,
    chain,
    ngram,
    open_llm,
    random_prompt,
    tokens,
    tree,
    watch,
)

# Random, repeating, a single token, and one as long as two blocks.
PROMPTS = [random_prompt(1, 30), random_prompt(2, 6) * 4, [77], random_prompt(3, 32)]
PARAMS = SamplingParams(max_tokens=30)
METHODS = ("none", "ngram", "chain", "tree")
EVERYTHING = [(case, method) for case in CASES for method in METHODS]
# Every architecture without and with drafts; every method with two of them.
PAIRS = [
    (case, method)
    for case, method in EVERYTHING
    if method in ("none", "tree") or case in ("llama", "mistral_window")
]


def speculation(models: TinyModels, case: str, method: str) -> Any:
    draft = models.draft(case)
    configs = {
        "none": None,
        "ngram": ngram(5),
        "chain": chain(draft, 4),
        "tree": tree(draft, 2, 3, 8),
    }
    return configs[method]


def assert_greedy(llm: LLM, models: TinyModels, case: str, prompts: list[list[int]]) -> None:
    expected = [models.greedy(case, prompt, 30) for prompt in prompts]
    assert tokens(llm.generate(prompts, PARAMS)) == expected


@pytest.mark.parametrize(("case", "method"), EVERYTHING)
def test_batched_and_alone(models: TinyModels, case: str, method: str) -> None:
    config = speculation(models, case, method)
    reuse = {"enable_block_reuse": False}
    with open_llm(models.folder(case), config, kv_cache_config=reuse) as llm:
        assert_greedy(llm, models, case, PROMPTS)
        for prompt in PROMPTS[1:3]:
            alone = llm.generate(prompt, PARAMS).outputs[0]
            assert alone.token_ids == models.greedy(case, prompt, 30)
        metrics = llm.get_metrics()
        assert (metrics["num_draft_tokens"] > 0) == (method != "none")
        if method != "none":  # both outcomes must have been met
            assert 0 < metrics["num_accepted_tokens"] < metrics["num_draft_tokens"]
        assert_no_leak(llm)


@pytest.mark.parametrize(("case", "method"), PAIRS)
def test_chunked_prefill(models: TinyModels, case: str, method: str) -> None:
    config = speculation(models, case, method)
    limits = {"max_batch_size": 2, "max_num_tokens": 16}
    with open_llm(models.folder(case), config, **limits) as llm:
        steps = watch(llm)
        assert_greedy(llm, models, case, PROMPTS)
    prefills = [item for step in steps for item in step.items if not item.is_generation]
    assert any(not item.samples for item in prefills), "no prompt was cut"
    assert any(len({item.is_generation for item in step.items}) == 2 for step in steps), (
        "prefill and generation never shared a step"
    )
    rows = [sum(i.num_rows + i.max_nodes for i in step.items) for step in steps]
    assert max(rows) <= 16


@pytest.mark.slow
@pytest.mark.parametrize(("case", "method"), PAIRS)
def test_prefix_reuse(models: TinyModels, case: str, method: str) -> None:
    """A second call finds the blocks of the first: those of its prompt and of its output."""
    config = speculation(models, case, method)
    first = PROMPTS[0]
    continued = first + models.greedy(case, first, 30)[:25]
    beside = first[:20] + PROMPTS[3]
    with open_llm(models.folder(case), config) as llm:
        steps = watch(llm)
        assert_greedy(llm, models, case, [first])
        assert steps[0].items[0].start == 0
        steps.clear()
        assert_greedy(llm, models, case, [first, beside, continued])
        # 30, 52 and 55 tokens, 16 a block; the second one shares its first block only.
        assert [item.start for item in steps[0].items] == [16, 16, 48]
        assert_no_leak(llm)


def test_without_prefix_reuse(models: TinyModels) -> None:
    off = {"enable_block_reuse": False}
    config = speculation(models, "llama", "chain")
    with open_llm(models.folder("llama"), config, kv_cache_config=off) as llm:
        steps = watch(llm)
        for _ in range(2):
            steps.clear()
            assert_greedy(llm, models, "llama", [PROMPTS[3]])
            assert steps[0].items[0].start == 0


@pytest.mark.parametrize(("case", "method"), PAIRS)
def test_preemption(models: TinyModels, case: str, method: str) -> None:
    config = speculation(models, case, method)
    kv = {"max_tokens": 128, "enable_block_reuse": method in ("none", "chain")}
    with open_llm(models.folder(case), config, kv_cache_config=kv, tokens_per_block=4) as llm:
        steps = watch(llm)
        assert_greedy(llm, models, case, PROMPTS)
        # Where all layers have windows, texts let go of what lies behind: there is room for all.
        is_short = sum(step.num_preempted for step in steps) > 0
        assert is_short == (case != "mistral_window")
        assert_no_leak(llm)


def test_end_tokens_of_generation_config(models: TinyModels) -> None:
    """A list of end tokens, as Llama 3's, ends the text where transformers ends it."""
    model = models.hf("llama")
    prompt = random_prompt(1, 30)
    text = models.greedy("llama", prompt, 30)
    before = model.generation_config.eos_token_id
    try:
        model.generation_config.eos_token_id = [text[25], text[9]]
        folder = models.save(model, "llama-two-ends")
        with open_llm(folder, chain(models.draft("llama"), 4)) as llm:
            output = llm.generate(prompt, PARAMS).outputs[0]
            first = min(text.index(text[25]), text.index(text[9]))
            assert output.token_ids == text[: first + 1]
            assert (output.finish_reason, output.stop_reason) == ("stop", None)
            beyond = llm.generate(prompt, SamplingParams(max_tokens=30, ignore_eos=True))
            assert beyond.outputs[0].token_ids == text
            assert beyond.outputs[0].finish_reason == "length"
    finally:
        model.generation_config.eos_token_id = before


def test_up_to_the_last_token_that_fits(models: TinyModels) -> None:
    """max_tokens=None fills max_seq_len exactly, with drafts cut so as not to pass it."""
    prompt = random_prompt(5, 50)
    expected = models.greedy("qwen3", prompt, 14)
    for method in METHODS:
        config = speculation(models, "qwen3", method)
        with open_llm(models.folder("qwen3"), config, max_seq_len=64) as llm:
            output = llm.generate(prompt, SamplingParams(max_tokens=None)).outputs[0]
            assert (output.token_ids, output.finish_reason) == (expected, "length")
