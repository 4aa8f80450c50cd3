"""Compiled engines with Medusa heads: they give what the eager modules give."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trtspec import LLM, SamplingParams
from trtspec.builder.build import cached_engine
from trtspec.builder.plan import plan_build
from trtspec.config.build import BuildConfig
from trtspec.config.medusa import MedusaConfig
from trtspec.config.speculative import parse_speculative_config
from trtspec.engine.folder import WEIGHTS_NAME, read_weights

from .helpers import (
    PARAMS_40,
    WAYS,
    TinyModels,
    assert_no_leak,
    assert_two_engine_calls,
    assert_way,
    open_llm,
    random_prompt,
    tokens,
)
from .medusa_heads import fitted_heads, medusa, write_heads

pytestmark = pytest.mark.slow

CASE = "llama"
PROMPTS = [random_prompt(290, 30), [77], random_prompt(291, 6) * 4, random_prompt(292, 14)]
SAMPLED = [SamplingParams(40, temperature=0.6, seed=seed) for seed in range(4)]
PENALISED = [replace(params, repetition_penalty=1.2, top_p=0.9) for params in SAMPLED]
LIMITS: dict[str, Any] = {"max_batch_size": 4, "max_num_tokens": 72}
TREES: dict[str, dict[str, Any]] = {
    "static": {},
    "dynamic": {"topk": 3, "num_draft_tokens": 12},
}
"""Static with matrices of the heads' own, dynamic with the target's head."""


@pytest.fixture(scope="module", params=TREES)
def shape(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def head(shape: str, models: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    texts = [prompt + models.greedy(CASE, prompt) for prompt in PROMPTS]
    heads = fitted_heads(models.hf(CASE), texts, 3)
    if shape == "dynamic":
        for one in heads:
            del one["W"]
    return write_heads(tmp_path_factory.mktemp(shape), heads)


@pytest.fixture(scope="module")
def folder(shape: str, models: TinyModels, head: Path) -> Path:
    speculation = parse_speculative_config(medusa(head, **TREES[shape]))
    build = BuildConfig("float32", **LIMITS)
    return cached_engine(plan_build(models.folder(CASE), build, speculation))


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(folder, skip_tokenizer_init=True) as llm:
        yield llm


def test_the_folder(shape: str, folder: Path, llm: LLM) -> None:
    """One graph, no cache; a borrowed head is the target's own memory."""
    assert llm.config.draft == MedusaConfig(3, 1, 64, 203, (2,), shape == "static")
    files = {path.name for path in (folder / "draft").iterdir()}
    assert files == {"rollout.pt2", WEIGHTS_NAME}
    assert not any("target" in name for name in read_weights(folder / "draft" / WEIGHTS_NAME))
    if shape == "dynamic":
        engine: Any = llm
        shared = engine._target._session._weights["lm_head.packed"]
        borrowed = engine._drafts[0]._rollout._weights["model.target.lm_head.packed"]
        assert borrowed.data_ptr() == shared.data_ptr()


@pytest.mark.parametrize(
    "params", [[PARAMS_40] * 4, SAMPLED, PENALISED], ids=["greedy", "sampled", "penalised"]
)
def test_equals_eager(
    shape: str, models: TinyModels, head: Path, llm: LLM, params: list[SamplingParams]
) -> None:
    """Tokens and even the drafts: the same trees are proposed and accepted."""
    # Prompts that no earlier test has left in the prefix cache, in parts longer than a block.
    first = [int(params[0].repetition_penalty > 1), int(params[0].temperature == 0)]
    prompts = [[*first, *prompt] for prompt in PROMPTS]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    with open_llm(models.folder(CASE), medusa(head, **TREES[shape]), **LIMITS) as eager:
        expected = eager.generate(prompts, params, use_tqdm=False)
    with open_llm(models.folder(CASE), **LIMITS) as plain:
        assert tokens(plain.generate(prompts, params, use_tqdm=False)) == tokens(expected)
    assert tokens(outputs) == tokens(expected)
    for ours, other in zip(outputs, expected, strict=True):
        assert ours.metrics.to_dict() == other.metrics.to_dict()
    assert_no_leak(llm)


def test_greedy_equals_transformers(models: TinyModels, llm: LLM) -> None:
    before = llm.get_metrics()["num_accepted_tokens"]
    expected = [models.greedy(CASE, prompt) for prompt in PROMPTS]
    assert tokens(llm.generate(PROMPTS, PARAMS_40, use_tqdm=False)) == expected
    assert llm.get_metrics()["num_accepted_tokens"] > before


@pytest.mark.parametrize("name", WAYS)
def test_other_ways_with_the_same_engine(
    shape: str, folder: Path, head: Path, llm: LLM, name: str
) -> None:
    smaller = medusa(head, **TREES[shape])
    if shape == "dynamic":
        smaller = medusa(head, heads=2, topk=3, num_draft_tokens=5)
    assert_way(folder, llm, name, smaller, PROMPTS, ([PARAMS_40] * 4, PENALISED))


def test_two_engine_calls_a_step(llm: LLM) -> None:
    assert_two_engine_calls(llm, PROMPTS)
