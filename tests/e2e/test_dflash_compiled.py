"""A compiled engine with a DFlash network gives what the eager modules give."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trtspec import LLM, SamplingParams
from trtspec.builder.build import cached_engine
from trtspec.builder.graph_cache import graph_key
from trtspec.builder.plan import plan_build
from trtspec.config.build import BuildConfig
from trtspec.config.dflash import DFlashConfig
from trtspec.config.speculative import parse_speculative_config
from trtspec.engine.drafts import DRAFT_ROLLOUT
from trtspec.engine.folder import WEIGHTS_NAME

from .dflash_heads import dflash, random_dflash
from .helpers import PARAMS_40, TinyModels, assert_no_leak, open_llm, random_prompt, tokens

pytestmark = pytest.mark.slow

CASE = "llama"
PROMPTS = [random_prompt(390, 30), [77], random_prompt(391, 6) * 4, random_prompt(392, 14)]
SAMPLED = [SamplingParams(40, temperature=0.6, seed=seed) for seed in range(4)]
PENALISED = [replace(params, repetition_penalty=1.2, top_p=0.9) for params in SAMPLED]
LIMITS: dict[str, Any] = {"max_batch_size": 4, "max_num_tokens": 72}
TREE: dict[str, Any] = {"num_speculative_tokens": 5, "num_draft_tokens": 16}


@pytest.fixture(scope="module")
def head(models: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One layer causal with a window, the other not: both masks are in the graph."""
    folder = tmp_path_factory.mktemp("head")
    network = random_dflash(models.hf(CASE), folder)
    file = network / "config.json"
    kinds = '"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 12'
    file.write_text(file.read_text().replace("{", "{" + kinds + ", ", 1))
    return network


@pytest.fixture(scope="module")
def folder(models: TinyModels, head: Path) -> Path:
    speculation = parse_speculative_config(dflash(head, "ddtree", **TREE))
    build = BuildConfig("float32", **LIMITS)
    return cached_engine(plan_build(models.folder(CASE), build, speculation))


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(folder, skip_tokenizer_init=True) as llm:
        yield llm


def test_the_folder(folder: Path, llm: LLM) -> None:
    files = {path.name for path in (folder / "draft").iterdir()}
    assert files == {"model.pt2", "rollout.pt2", WEIGHTS_NAME}
    # The mask token is part of the code, so the code is not another mask token's.
    (own,) = llm.config.drafts
    assert isinstance(own.network, DFlashConfig)
    network = replace(own.network, mask_token_id=own.network.mask_token_id + 1)
    other = replace(llm.config, drafts=(replace(own, network=network),))
    name = own.graphs[DRAFT_ROLLOUT]
    assert graph_key(other, name) != graph_key(llm.config, name)


@pytest.mark.parametrize(
    "params", [[PARAMS_40] * 4, SAMPLED, PENALISED], ids=["greedy", "sampled", "penalised"]
)
def test_equals_eager(
    models: TinyModels, head: Path, llm: LLM, params: list[SamplingParams]
) -> None:
    """Tokens and even the drafts: the same trees are proposed and accepted."""
    # Prompts that no earlier test has left in the prefix cache, in parts longer than a block.
    first = [int(params[0].repetition_penalty > 1), int(params[0].temperature == 0)]
    prompts = [[*first, *prompt] for prompt in PROMPTS]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    with open_llm(models.folder(CASE), dflash(head, "ddtree", **TREE), **LIMITS) as eager:
        expected = eager.generate(prompts, params, use_tqdm=False)
    assert tokens(outputs) == tokens(expected)
    for ours, other in zip(outputs, expected, strict=True):
        assert ours.metrics.to_dict() == other.metrics.to_dict()
    assert_no_leak(llm)
