"""Above temperature 0 a seed gives the same tokens whatever is speculated, batched or chunked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from trtspec import SamplingParams

from .helpers import (
    SAMPLED_24,
    TinyModels,
    assert_no_leak,
    chain,
    eight_prompts,
    ngram,
    open_llm,
    tokens,
    tree,
    watch,
)

pytestmark = pytest.mark.slow

PROMPTS = eight_prompts(20)
# One option each beside temperature, and in the end several at once; low temperatures among them,
# so that drafts are accepted.
OPTIONS: list[dict[str, Any]] = [
    {"top_k": 5},
    {"top_p": 0.7},
    {"min_p": 0.1, "temperature": 0.5},
    {"repetition_penalty": 1.3, "temperature": 0.3},
    # Three tokens share all the mass, so that drafts are accepted and counts decide what is next.
    {"frequency_penalty": 1.9, "presence_penalty": 0.4, "logit_bias": {5: 60.0, 8: 60.0, 9: 60.0}},
    {"logit_bias": {5: 4.0, 77: -100.0}, "bad_words": [[8], [9, 9], [5, 6, 5]]},
    {"stop_token_ids": list(range(100)), "min_tokens": 12},
    {"top_k": 20, "top_p": 0.95, "min_p": 0.01, "logit_bias": {3: 9.0, 8: 10.0, 9: 10.0}},
]
FILTERED = [replace(params, **more) for params, more in zip(SAMPLED_24, OPTIONS, strict=True)]
TREES = [(2, 3, 7), (3, 2, 13), (4, 5, 12), (2, 8, 20), (8, 1, 9)]


def speculations(models: TinyModels) -> dict[str, Any]:
    draft = models.draft("llama")
    return {
        **{f"ngram-{k}": ngram(k) for k in range(1, 9)},
        **{f"chain-{k}": chain(draft, k) for k in range(1, 9)},
        **{f"tree-{k}-{d}-{n}": tree(draft, k, d, n) for k, d, n in TREES},
    }


OFTEN = (1, 2, 8)
"""Of chains that differ in their length alone, those that run outside the full product."""
NAMES = [
    *(
        pytest.param(f"{method}-{k}", marks=[] if k in OFTEN else pytest.mark.matrix)
        for method in ("ngram", "chain")
        for k in range(1, 9)
    ),
    *(
        pytest.param(
            f"tree-{k}-{d}-{n}", marks=[] if (k, d) in ((2, 3), (8, 1)) else pytest.mark.matrix
        )
        for k, d, n in TREES
    ),
]


class Baseline:
    """The texts without speculation, each prompt alone, once per dtype."""

    def __init__(self, models: TinyModels) -> None:
        self.models = models
        self.known: dict[str, list[list[list[int]]]] = {}

    def __call__(self, dtype: str = "float32") -> list[list[list[int]]]:
        if dtype not in self.known:
            options = {"dtype": dtype, "max_batch_size": 1}
            with open_llm(self.models.folder("llama"), **options) as llm:
                self.known[dtype] = [
                    tokens([llm.generate(PROMPTS[i], params[i]) for i in range(len(PROMPTS))])
                    for params in (SAMPLED_24, FILTERED)
                ]
        return self.known[dtype]


@pytest.fixture(scope="module")
def baseline(models: TinyModels) -> Baseline:
    return Baseline(models)


def test_seeds_matter(baseline: Baseline) -> None:
    plain, filtered = baseline()
    assert all(len(text) == 24 or text[-1] == 2 for text in plain)
    assert len({tuple(text[:8]) for text in plain}) == len(plain)
    # The options did something: each changed its text.
    assert all(a != b for a, b in zip(plain, filtered, strict=True))


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("name", NAMES)
def test_same_tokens(models: TinyModels, baseline: Baseline, name: str, batch: int) -> None:
    config = speculations(models)[name]
    # The batch has few rows a step: its prompts are fed in chunks and its drafts are shortened.
    limits = {"max_batch_size": batch, "max_num_tokens": 20 if batch > 1 else None}
    with open_llm(models.folder("llama"), config, **limits) as llm:
        for turn, (params, expected) in enumerate(
            zip((SAMPLED_24, FILTERED), baseline(), strict=True)
        ):
            some = slice(turn, None, 2) if batch == 1 else slice(None)
            outputs = llm.generate(PROMPTS[some], params[some], use_tqdm=False)
            assert tokens(outputs) == expected[some]
        metrics = llm.get_metrics()
        assert 1 < metrics["num_accepted_tokens"] < metrics["num_draft_tokens"]
        assert_no_leak(llm)


@pytest.mark.parametrize("rows", [8, 13, 64])
def test_row_budget_without_speculation(models: TinyModels, baseline: Baseline, rows: int) -> None:
    with open_llm(models.folder("llama"), max_num_tokens=rows) as llm:
        for params, expected in zip((SAMPLED_24, FILTERED), baseline(), strict=True):
            assert tokens(llm.generate(PROMPTS, params, use_tqdm=False)) == expected


@pytest.mark.parametrize("name", ["none", "ngram-4", "chain-3", "tree-2-3-7"])
def test_preempted_samples(models: TinyModels, baseline: Baseline, name: str) -> None:
    """Penalty counts, minimum lengths and noise indices survive a recomputation."""
    config = speculations(models).get(name)
    options = {"kv_cache_config": {"max_tokens": 128}, "tokens_per_block": 4}
    with open_llm(models.folder("llama"), config, **options) as llm:
        steps = watch(llm)
        for params, expected in zip((SAMPLED_24, FILTERED), baseline(), strict=True):
            assert tokens(llm.generate(PROMPTS, params, use_tqdm=False)) == expected
        assert sum(step.num_preempted for step in steps) > 0
        assert_no_leak(llm)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        *[("bfloat16", name) for name in ("none", "ngram-4", "chain-4", "tree-3-2-13")],
        ("float16", "tree-3-2-13"),
    ],
)
def test_half_precision(models: TinyModels, baseline: Baseline, name: str, dtype: str) -> None:
    """The ops are row-invariant, so that 16-bit formats keep the promise as well."""
    config = speculations(models).get(name)
    greedy = SamplingParams(max_tokens=24)
    with open_llm(models.folder("llama"), dtype=dtype, max_batch_size=1) as llm:
        alone = [llm.generate(prompt, greedy).outputs[0].token_ids for prompt in PROMPTS]
    with open_llm(models.folder("llama"), config, dtype=dtype, max_num_tokens=120) as llm:
        for params, expected in zip((SAMPLED_24, FILTERED), baseline(dtype), strict=True):
            assert tokens(llm.generate(PROMPTS, params, use_tqdm=False)) == expected
        assert tokens(llm.generate(PROMPTS, greedy, use_tqdm=False)) == alone


@pytest.mark.parametrize("name", ["none", "ngram-3", "chain-3", "tree-2-3-7"])
def test_samples_of_one_prompt(models: TinyModels, baseline: Baseline, name: str) -> None:
    """n samples differ, are repeatable, and the first is what n=1 gives."""
    params = replace(SAMPLED_24[2], n=3)
    with open_llm(models.folder("llama")) as llm:
        expected = tokens([llm.generate(PROMPTS[2], params)])
    assert len(set(map(tuple, expected))) == 3
    assert expected[0] == baseline()[0][2]
    with open_llm(models.folder("llama"), speculations(models).get(name), max_batch_size=2) as llm:
        for _ in range(2):
            output = llm.generate(PROMPTS[2], params)
            assert tokens([output]) == expected
            assert [completion.index for completion in output.outputs] == [0, 1, 2]


def test_a_drawn_seed_is_reported(models: TinyModels) -> None:
    params = replace(SAMPLED_24[0], seed=None)
    with open_llm(models.folder("llama"), seed=11) as llm:
        first, second = llm.generate([PROMPTS[0], PROMPTS[0]], params, use_tqdm=False)
        assert first.outputs[0].token_ids != second.outputs[0].token_ids
        again = replace(params, seed=second.outputs[0].seed)
        assert tokens([llm.generate(PROMPTS[0], again)]) == tokens([second])
    with open_llm(models.folder("llama"), seed=11) as llm:  # LLM's seed repeats the drawing
        assert tokens([llm.generate(PROMPTS[0], params)]) == tokens([first])
    with open_llm(models.folder("llama")) as llm:
        assert tokens([llm.generate(PROMPTS[0], params)]) != tokens([first])


def test_bans_and_biases_hold(models: TinyModels) -> None:
    """What the options promise about the text, with drafts that know nothing of them."""
    with open_llm(models.folder("llama"), chain(models.folder("llama"), 4)) as llm:
        free = llm.generate(PROMPTS[0], SAMPLED_24[0]).outputs[0].token_ids
        banned = [[free[0]], free[4:6], free[9:12]]
        text = (
            llm.generate(PROMPTS[0], replace(SAMPLED_24[0], bad_words=banned)).outputs[0].token_ids
        )
        assert all(text[i : i + len(word)] != word for word in banned for i in range(len(text)))
        only = replace(SAMPLED_24[0], logit_bias={7: 1000.0})
        assert llm.generate(PROMPTS[0], only).outputs[0].token_ids == [7] * 24
        stop = replace(SAMPLED_24[0], stop_token_ids=list(range(200)), min_tokens=10)
        output = llm.generate(PROMPTS[0], stop).outputs[0]
        assert len(output.token_ids) == 11
        assert all(token >= 200 for token in output.token_ids[:10])
        assert output.stop_reason == output.token_ids[-1] < 200
