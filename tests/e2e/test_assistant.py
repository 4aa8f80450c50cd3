"""Assistants that read their target's K/V: the text stays, and right drafts are accepted."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from trtspec.errors import ConfigError

from .assistants import assistant, knowing_assistant, markov_target, random_assistant, save
from .families import VOCAB, family_model
from .helpers import TinyModels, assert_no_leak, ngram, open_llm, random_prompt, tokens, watch
from .hybrid_drafts import hybrid
from .test_families import GREEDY, PROMPTS, RUNS, TIGHT, plain_texts, texts

TREE = {"num_steps": 3, "topk": 2, "num_draft_tokens": 8}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> TinyModels:
    made = TinyModels(tmp_path_factory.mktemp("assistants"))
    made.hf = cache(family_model)
    return made


@pytest.mark.parametrize(
    "way",
    [
        pytest.param("chain", marks=pytest.mark.slow),
        "tree",
        pytest.param("hybrid", marks=pytest.mark.slow),
    ],
)
def test_text_is_unchanged(models: TinyModels, way: str) -> None:
    """With chunked prefills, preemption and kept prefixes."""
    folder = models.folder("gemma4")
    helper = save(random_assistant(models.hf("gemma4"), 29), models.root / "assistant")
    chain = assistant(helper, num_speculative_tokens=4)
    speculation: Any = {
        "chain": chain,
        "tree": assistant(helper, **TREE),
        "hybrid": hybrid(chain, ngram(4)),
    }[way]
    expected = [models.greedy("gemma4", prompt, 24) for prompt in PROMPTS]
    greedy, sampled = plain_texts(models, "gemma4")
    assert greedy == expected
    with open_llm(folder, speculation, **TIGHT) as llm:
        steps = watch(llm)
        assert texts(llm) == [greedy, sampled]
        assert sum(step.num_preempted for step in steps) > 0
        assert llm.get_metrics()["num_draft_tokens"] > 0
        # Kept prefixes leave a request without a state until its first step.
        assert tokens(llm.generate(PROMPTS, GREEDY)) == expected
        assert_no_leak(llm)


@pytest.mark.parametrize("knows", [True, False])
def test_right_drafts_are_accepted(knows: bool, tmp_path: Path) -> None:
    target = markov_target()
    target.save_pretrained(tmp_path / "target")
    helper = save(knowing_assistant(target, reads_token=knows), tmp_path / "assistant")
    speculation = assistant(helper, num_speculative_tokens=4)
    prompts = [random_prompt(7, 11, VOCAB), random_prompt(8, 25, VOCAB)]
    with open_llm(tmp_path / "target", speculation) as llm:
        for params in RUNS:
            llm.generate(prompts, params, use_tqdm=False)
        metrics = llm.get_metrics()
    accepted, drafted = metrics["num_accepted_tokens"], metrics["num_draft_tokens"]
    assert drafted > 40
    assert accepted == drafted if knows else accepted < 0.2 * drafted


def test_slots_are_refused(models: TinyModels) -> None:
    helper = save(random_assistant(models.hf("gemma4")), models.root / "plain")
    with pytest.raises(ConfigError, match=r"reads the target's K/V of layers 1, 2 in blocks"):
        open_llm(models.folder("gemma4"), assistant(helper, num_steps=2), backend="onnx")


@pytest.mark.slow
@pytest.mark.matrix
def test_compiled(models: TinyModels) -> None:
    helper = save(random_assistant(models.hf("gemma4"), 29), models.root / "compiled")
    expected = [models.greedy("gemma4", prompt, 24) for prompt in PROMPTS]
    limits = {"max_num_tokens": 32, "max_seq_len": 100, "backend": "aoti"}
    with open_llm(models.folder("gemma4"), assistant(helper, **TREE), **limits) as llm:
        assert tokens(llm.generate(PROMPTS, GREEDY)) == expected
        assert llm.get_metrics()["num_draft_tokens"] > 0
        assert_no_leak(llm)
