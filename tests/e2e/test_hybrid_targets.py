"""Targets whose layers keep states: what their own modules draft, texts that end early, and whether
a wrong state would be seen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from trtspec import LLM, SamplingParams
from trtspec.errors import ConfigError
from trtspec.executor.accepted_nodes import AcceptedNodes
from trtspec.executor.step_plan import StepPlan
from trtspec.executor.step_result import StepResult
from trtspec.models.mixers.gated_delta import GatedDelta
from trtspec.models.state_rows import StateRows
from trtspec.ops.state_walk import StateWalk

from .families import VOCAB, family_model
from .helpers import TinyModels, assert_no_leak, ngram, open_llm, random_prompt, tokens, tree
from .hybrid_modules import add_hybrid_modules, hybrid_module
from .mtp_modules import guesses_of, mtp
from .students import student
from .test_mtp_behind import watch_guesses

PROMPTS = [random_prompt(1, 30, VOCAB), random_prompt(2, 6, VOCAB) * 4, random_prompt(3, 5, VOCAB)]
GREEDY = SamplingParams(max_tokens=24)
RUNS = (GREEDY, replace(GREEDY, temperature=0.8, seed=5))
TIGHT: dict[str, Any] = {
    "max_num_tokens": 16,
    "tokens_per_block": 4,
    "kv_cache_config": {"max_tokens": 84},
}


@pytest.fixture(scope="module")
def hybrids(tmp_path_factory: pytest.TempPathFactory) -> TinyModels:
    models = TinyModels(tmp_path_factory.mktemp("hybrids"))
    models.hf = cache(family_model)
    return models


@pytest.fixture(scope="module")
def draft(hybrids: TinyModels) -> Path:
    """Often right about Qwen3.5's texts."""
    read = [prompt + hybrids.greedy("qwen3_5", prompt, 24) for prompt in PROMPTS]
    return hybrids.save(student(read), "student")


def texts(llm: LLM) -> list[list[list[int]]]:
    return [tokens(llm.generate(PROMPTS, run, use_tqdm=False)) for run in RUNS]


@pytest.mark.parametrize(("case", "stacked"), [("qwen3_5", False), ("qwen3_5_moe", True)])
def test_guesses_of_a_module(hybrids: TinyModels, case: str, stacked: bool, tmp_path: Path) -> None:
    """Are those of transformers' own classes."""
    hf = hybrids.hf(case)
    module = hybrid_module(hf)
    folder = add_hybrid_modules(hf, tmp_path / case, [module], stacked)
    with open_llm(folder, mtp(num_speculative_tokens=1), max_seq_len=96) as llm:
        found = watch_guesses(llm)
        (text,) = tokens(llm.generate(PROMPTS[:1], GREEDY))
    guesses = guesses_of(hf, module, PROMPTS[0] + text)
    assert len(found) >= 10
    assert found == {count: guesses[count - 2] for count in found}


@pytest.mark.parametrize("case", ["qwen3_5", "qwen3_next"])
def test_modules_change_no_text(hybrids: TinyModels, case: str, tmp_path: Path) -> None:
    """One at every depth, chain or tree, and one for each depth; in chunks and with preemption."""
    hf = hybrids.hf(case)
    modules = [hybrid_module(hf, seed) for seed in (1, 2)]
    folder = add_hybrid_modules(hf, tmp_path / case, modules)
    with open_llm(folder, max_seq_len=96) as llm:
        expected = texts(llm)
    assert expected[0] == [hybrids.greedy(case, prompt, 24) for prompt in PROMPTS]
    for shape in (
        {"num_speculative_tokens": 3, "use_mtp_vanilla": False},
        {"num_speculative_tokens": 3, "topk": 2, "num_draft_tokens": 8},
        {"num_speculative_tokens": 2},
    ):
        with open_llm(folder, mtp(**shape), max_seq_len=96, **TIGHT) as llm:
            assert texts(llm) == expected
            assert llm.get_metrics()["num_draft_tokens"] > 0
            assert_no_leak(llm)
