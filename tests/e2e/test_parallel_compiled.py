"""Compiled engines with a PARD draft and a P-EAGLE head: they give what the eager ones give."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from trtspec import LLM, SamplingParams
from trtspec.builder.build import cached_engine
from trtspec.builder.graph_cache import graph_key
from trtspec.builder.plan import plan_build
from trtspec.config.build import BuildConfig
from trtspec.config.parallel import PardConfig, PEagleConfig
from trtspec.config.speculative import parse_speculative_config
from trtspec.engine.drafts import DRAFT_ROLLOUT, DRAFT_STEP
from trtspec.engine.folder import WEIGHTS_NAME, read_weights
from trtspec.errors import ConfigError

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
from .parallel_drafts import p_eagle, pard, random_p_eagle, save_pard

pytestmark = pytest.mark.slow

CASE = "llama"
PROMPTS = [random_prompt(490, 30), [77], random_prompt(491, 6) * 4, random_prompt(492, 14)]
SAMPLED = [SamplingParams(40, temperature=0.6, seed=seed) for seed in range(4)]
PENALISED = [replace(params, repetition_penalty=1.2, top_p=0.9) for params in SAMPLED]
LIMITS: dict[str, Any] = {"max_batch_size": 4, "max_num_tokens": 72}
TREES: dict[str, dict[str, Any]] = {
    "pard": {"num_speculative_tokens": 4, "topk": 3, "num_draft_tokens": 12},
    "p_eagle": {"eagle_choices": [[0], [1], [3], [1, 0], [1, 2], [3, 1], [1, 2, 0]]},
}


@pytest.fixture(scope="module", params=TREES)
def config(
    request: pytest.FixtureRequest, models: TinyModels, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "pard":
        hf = AutoModelForCausalLM.from_pretrained(models.draft(CASE))
        return pard(save_pard(hf, folder, 7), **TREES["pard"])
    ids = sorted(set(random_prompt(493, 60)))
    return p_eagle(random_p_eagle(models.hf(CASE), folder, ids, layers=2), **TREES["p_eagle"])


@pytest.fixture(scope="module")
def folder(models: TinyModels, config: dict[str, Any]) -> Path:
    build = BuildConfig("float32", **LIMITS)
    plan = plan_build(models.folder(CASE), build, parse_speculative_config(config))
    return cached_engine(plan)


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(folder, skip_tokenizer_init=True) as llm:
        yield llm


def test_the_folder(folder: Path, llm: LLM) -> None:
    draft = llm.config.draft
    assert isinstance(draft, PardConfig | PEagleConfig)
    stored = read_weights(folder / "draft" / WEIGHTS_NAME)
    assert ("mask_hidden" in stored) == isinstance(draft, PEagleConfig)
    # The mask token is part of the code, so the code is not another mask token's.
    (own,) = llm.config.drafts
    another = replace(own, network=replace(draft, mask_token=draft.mask_token + 1))
    other, name = replace(llm.config, drafts=(another,)), own.graphs[DRAFT_ROLLOUT]
    assert graph_key(other, name) != graph_key(llm.config, name)
    assert (folder / own.graphs[DRAFT_STEP]).is_file()


@pytest.mark.parametrize(
    "params", [[PARAMS_40] * 4, SAMPLED, PENALISED], ids=["greedy", "sampled", "penalised"]
)
def test_equals_eager(
    models: TinyModels, config: dict[str, Any], llm: LLM, params: list[SamplingParams]
) -> None:
    """Tokens and even the drafts: the same trees are proposed and accepted."""
    # Prompts that no earlier test has left in the prefix cache, in parts longer than a block.
    first = [int(params[0].repetition_penalty > 1), int(params[0].temperature == 0)]
    prompts = [[*first, *prompt] for prompt in PROMPTS]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    with open_llm(models.folder(CASE), config, **LIMITS) as eager:
        expected = eager.generate(prompts, params, use_tqdm=False)
    with open_llm(models.folder(CASE), **LIMITS) as plain:
        assert tokens(plain.generate(prompts, params, use_tqdm=False)) == tokens(expected)
    assert tokens(outputs) == tokens(expected)
    for ours, other in zip(outputs, expected, strict=True):
        assert ours.metrics.to_dict() == other.metrics.to_dict()
    assert_no_leak(llm)


@pytest.mark.parametrize("name", WAYS)
def test_other_ways_with_the_same_engine(
    config: dict[str, Any], folder: Path, llm: LLM, name: str
) -> None:
    smaller = {**config, "model": "draft"}
    if config["method"] == "pard":
        smaller |= {"num_speculative_tokens": 2, "num_draft_tokens": 5, "mask_token_id": 7}
    assert_way(folder, llm, name, smaller, PROMPTS, ([PARAMS_40] * 4, PENALISED))


def test_two_engine_calls_a_step(llm: LLM) -> None:
    assert_two_engine_calls(llm, PROMPTS)


def test_another_mask_token_is_refused(config: dict[str, Any], folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"mask_token_id=9 was asked for, .* trained with [57]"):
        LLM(folder, {**config, "mask_token_id": 9}, skip_tokenizer_init=True)
