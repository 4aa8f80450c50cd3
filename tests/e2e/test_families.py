"""Every family's text is transformers' token for token in float32, and no draft changes it.

One scenario a family tests what could break: chunked prefill, a batch with preemption, reuse of
prefixes behind windows, a tree of a draft model and a random EAGLE-3 head, and n-gram chains. The
other drafts take turns over the families. The product of all methods and ways, at temperature 0 and
0.8, bears the mark ``matrix``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from checkpoint_converters import read_config
from trtspec import LLM, SamplingParams
from trtspec.models.layer_facts import keeps_states
from trtspec.models.rope import RotaryEmbedding

from .dflash_heads import dflash, random_dflash
from .eagle_heads import eagle, random_eagle3
from .families import FAMILIES, SIZES, VOCAB, family_model
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
from .medusa_heads import fitted_heads, medusa, write_heads
from .students import student

PROMPTS = [random_prompt(1, 30, VOCAB), random_prompt(2, 6, VOCAB) * 4, random_prompt(3, 33, VOCAB)]
GREEDY = SamplingParams(max_tokens=24)
SHORT = replace(GREEDY, max_tokens=12)
SAMPLED = replace(SHORT, temperature=0.8, seed=5)
RUNS = (GREEDY, SAMPLED)
TIGHT: dict[str, Any] = {
    "max_num_tokens": 16,
    "tokens_per_block": 4,
    "kv_cache_config": {"max_tokens": 84, "snapshot_blocks": 1},
}


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> TinyModels:
    models = TinyModels(tmp_path_factory.mktemp("families"))
    models.hf = cache(family_model)
    return models


def open_family(folder: Path, draft: Any = None, **options: Any) -> LLM:
    """For sequences of all the lengths that the models are made for, longrope's long ones too."""
    return open_llm(folder, draft, **{"max_seq_len": SIZES["max_position_embeddings"], **options})


def text(llm: LLM, params: SamplingParams) -> list[list[int]]:
    return tokens(llm.generate(PROMPTS, params, use_tqdm=False))


def texts(llm: LLM) -> list[list[list[int]]]:
    """Of both runs."""
    return [text(llm, params) for params in RUNS]


@cache
def plain_texts(models: TinyModels, case: str) -> list[list[list[int]]]:
    with open_family(models.folder(case)) as llm:
        return texts(llm)


@cache
def drafts(models: TinyModels, case: str, method: str) -> Any:
    return METHODS[method](models, case)


def eagle3_head(models: TinyModels, case: str) -> Any:
    head = random_eagle3(models.hf(case), models.root / f"{case}-eagle3")
    return eagle(head, "eagle3", num_steps=3, eagle_topk=2, num_draft_tokens=8)


def block(models: TinyModels, case: str) -> Any:
    head = random_dflash(models.hf(case), models.root / f"{case}-dflash")
    return dflash(head, num_speculative_tokens=5)


def fitted(models: TinyModels, case: str) -> Any:
    read = [prompt + models.greedy(case, prompt, 24) for prompt in PROMPTS]
    heads = fitted_heads(models.hf(case), read, 2)
    return medusa(write_heads(models.root / f"{case}-medusa", heads), 2, num_speculative_tokens=2)


def draft_model(models: TinyModels, case: str) -> Path:
    """The target with noise or, as drafts keep no states, another model that was fitted to it."""
    if not keeps_states(read_config(models.folder(case))):
        return models.draft(case)
    read = [prompt + models.greedy(case, prompt, 24) for prompt in PROMPTS]
    return models.save(student(read), f"{case}-student")


METHODS: dict[str, Callable[[TinyModels, str], Any]] = {
    "tree": lambda models, case: tree(draft_model(models, case), 2, 3, 8),
    "eagle3": eagle3_head,
    "chain": lambda models, case: chain(draft_model(models, case), 4),
    "ngram": lambda models, case: ngram(5),
    "suffix": lambda models, case: {"method": "suffix", "num_speculative_tokens": 5},
    "dflash": block,
    "medusa": fitted,
}


IN_TURN = ("chain", "suffix", "dflash", "medusa")
NOT_IN_THE_FAST_LOOP = {
    # Others have their parts.
    *("olmo2", "phi3", "glm", "gemma", "gemma3", "gemma4_keys", "cohere", "cohere_plus"),
    *("deepseek_v2", "qwen2_moe", "qwen3_moe", "glm4_moe", "granite_moe", "qwen3_5_moe"),
    *("olmo3", "starcoder2", "granite"),
    # They take long; test_assistant.py has Gemma 4, tests/ops the sinks.
    *("gemma4", "gpt_oss"),
}


def in_turn(turn: int, case: str) -> Any:
    marks = [pytest.mark.slow] if case in NOT_IN_THE_FAST_LOOP else []
    return pytest.param(turn, case, marks=marks, id=case)


@pytest.mark.parametrize(("turn", "case"), [in_turn(*entry) for entry in enumerate(FAMILIES)])
def test_text_is_that_of_transformers(families: TinyModels, case: str, turn: int) -> None:
    folder = families.folder(case)
    expected = [families.greedy(case, prompt, 24) for prompt in PROMPTS]
    with open_family(folder) as llm:
        greedy, sampled = texts(llm)
        assert greedy == expected
        assert tokens(llm.generate(PROMPTS[:1], GREEDY)) == expected[:1]  # alone, on kept blocks
    assert sampled != [tokens[:12] for tokens in greedy]
    slides = all(layer.window for layer in read_config(folder).layers)
    with open_family(folder, drafts(families, case, "tree"), **TIGHT) as llm:
        steps = watch(llm)
        assert texts(llm) == [greedy, sampled]
        # Where all blocks behind the windows are let go, there is room (see below).
        assert sum(step.num_preempted for step in steps) > 0 or slides
        metrics = llm.get_metrics()
        assert 0 < metrics["num_accepted_tokens"] < metrics["num_draft_tokens"]
        # A continued text finds the blocks of its beginning.
        assert tokens(llm.generate(PROMPTS[:1], SHORT)) == [expected[0][:12]]
        steps.clear()
        continued = [PROMPTS[0] + expected[0][:8]]
        (again,) = tokens(llm.generate(continued, SHORT))
        assert again == expected[0][8:20]
        assert steps[0].items[0].start >= 28
        assert_no_leak(llm)
    for method, options in (("eagle3", TIGHT), ("ngram", {}), (IN_TURN[turn % 4], {})):
        with open_family(folder, drafts(families, case, method), **options) as llm:
            assert text(llm, SHORT) == [tokens[:12] for tokens in greedy], method
            assert llm.get_metrics()["num_draft_tokens"] > 0, method
            assert_no_leak(llm)


def test_longrope_turns_as_in_transformers(families: TinyModels) -> None:
    """By short factors for a length that they are made for, which an engine has where nobody asks
    for more, else by long ones."""
    config = read_config(families.folder("phi3_long"))
    theirs = families.hf("phi3_long").model.rotary_emb
    assert config.usual_sequence == 8 and config.max_sequence == 128
    for length in (8, 9):
        positions = torch.arange(length)
        cos, _ = theirs(torch.zeros(1, length, 64), positions[None])
        ours = RotaryEmbedding(config.ropes[0].for_length(length), 12)(positions)
        torch.testing.assert_close(ours.cos[:, 0], cos[0, :, :6])


@pytest.mark.parametrize(("case", "method"), [("starcoder2", "tree"), ("phi3", "ngram")])
def test_a_text_longer_than_the_cache(families: TinyModels, case: str, method: str) -> None:
    """All layers have a window, and blocks behind it are let go; with a draft's cache beside it."""
    prompt = random_prompt(9, 40, VOCAB)
    params = SamplingParams(max_tokens=60)
    draft, folder = drafts(families, case, method), families.folder(case)
    small: dict[str, Any] = {"max_num_tokens": 8, "tokens_per_block": 4}
    with open_family(folder, draft, **small, kv_cache_config={"max_tokens": 60}) as llm:
        expected = families.greedy(case, prompt, 60)
        target, steps = llm._executor._resources.target, watch(llm)
        for text_again in (prompt, prompt, prompt + expected[:40]):
            held = target.match(text_again)
            assert held < 40  # the others of its blocks were written over
            steps.clear()
            left = replace(params, max_tokens=len(prompt) + 60 - len(text_again))
            assert tokens(llm.generate([text_again], left)) == [expected[-left.max_tokens :]]
            assert steps[0].items[0].start <= held
        assert_no_leak(llm)
    with open_family(folder, draft, **small, kv_cache_config={"max_tokens": 24}) as llm:
        (output,) = llm.generate([prompt], params)
        assert re.search(r"= \d+ tokens, \d+ of them at once, but the \w+ KV", str(output.error))


@pytest.mark.parametrize(
    ("case", "method", "room"), [("starcoder2", "tree", 48), ("phi3", "ngram", 36)]
)
def test_preemption_where_blocks_are_let_go(
    families: TinyModels, case: str, method: str, room: int
) -> None:
    """Of many short prompts that grow past their windows in a cache for fewer."""
    prompts = [random_prompt(20 + i, 5, VOCAB) for i in range(6)]
    expected = [families.greedy(case, prompt, 24) for prompt in prompts]
    options = {**TIGHT, "kv_cache_config": {"max_tokens": room}}
    with open_family(families.folder(case), drafts(families, case, method), **options) as llm:
        steps = watch(llm)
        assert tokens(llm.generate(prompts, GREEDY, use_tqdm=False)) == expected
        assert sum(step.num_preempted for step in steps) > 0
        assert llm.get_metrics()["num_draft_tokens"] > 0
        assert_no_leak(llm)


WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "alone": {"max_batch_size": 1},
    "chunked": {"max_num_tokens": 9, "max_batch_size": 2},
    "tight": TIGHT,
    "without_reuse": {"kv_cache_config": {"enable_block_reuse": False}},
}


@pytest.mark.matrix
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", FAMILIES)
def test_every_method_and_way(families: TinyModels, case: str, method: str, way: str) -> None:
    expected = plain_texts(families, case)
    with open_family(families.folder(case), drafts(families, case, method), **WAYS[way]) as llm:
        for _ in range(2):
            assert texts(llm) == expected
        assert llm.get_metrics()["num_draft_tokens"] > 0
        assert_no_leak(llm)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["deepseek_v3", "qwen2_moe", "gpt_oss"])
def test_preemption_gives_the_same_bits_again(families: TinyModels, case: str) -> None:
    """In bfloat16, where they tell more than texts: each prompt alone and in one pass, beside all
    in chunks where some are taken back and computed once more; trees of a draft's too."""
    params = replace(SAMPLED, max_tokens=24, logprobs=3)
    tight = {**TIGHT, "kv_cache_config": {"max_tokens": 72}}

    def bits(llm: LLM, prompts: list[list[int]]) -> list[Any]:
        outputs = llm.generate(prompts, params, use_tqdm=False)
        return [(o.outputs[0].token_ids, repr(o.outputs[0].logprobs)) for o in outputs]

    folder = families.folder(case)
    with open_family(folder, dtype="bfloat16") as llm:
        alone = [found for prompt in PROMPTS for found in bits(llm, [prompt])]
    for draft in (None, drafts(families, case, "tree")):
        with open_family(folder, draft, dtype="bfloat16", **tight) as llm:
            steps = watch(llm)
            assert bits(llm, PROMPTS) == alone
            assert sum(step.num_preempted for step in steps) > 0
