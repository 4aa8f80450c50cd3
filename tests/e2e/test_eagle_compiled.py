"""One compiled engine with an EAGLE-3 head, built once: it gives what the eager modules give."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import trtspec.builder.graph_cache as graph_cache
from trtspec import LLM, SamplingParams
from trtspec.builder.build import cached_engine
from trtspec.builder.plan import plan_build
from trtspec.config.build import BuildConfig
from trtspec.config.eagle import EagleConfig
from trtspec.config.speculative import parse_speculative_config
from trtspec.engine.folder import WEIGHTS_NAME, read_weights
from trtspec.errors import ConfigError
from trtspec.executor.buckets import greedy_sampling
from trtspec.executor.model_engine import ModelEngine
from trtspec.executor.packing import RowGroup

from .eagle_heads import eagle, random_eagle3
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

pytestmark = pytest.mark.slow

CASE = "llama"  # its embedding is borrowed, its head is not
IDS = range(10, 34)
TREE: dict[str, Any] = {"num_speculative_tokens": 3, "topk": 2, "num_draft_tokens": 6}
PROMPTS = [random_prompt(210, 30), [77], random_prompt(211, 6) * 4, random_prompt(212, 14)]
LIKELY = dict.fromkeys(IDS, 3.0)
SAMPLED = [SamplingParams(40, temperature=0.8, seed=seed, logit_bias=LIKELY) for seed in range(4)]
PENALISED = [replace(params, repetition_penalty=1.2, top_p=0.9) for params in SAMPLED]
LIMITS: dict[str, Any] = {"max_batch_size": 4, "max_num_tokens": 64}


@pytest.fixture(scope="module")
def head(models: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_eagle3(models.hf(CASE), tmp_path_factory.mktemp("head"), IDS)


@pytest.fixture(scope="module")
def folder(models: TinyModels, head: Path) -> Path:
    speculation = parse_speculative_config(eagle(head, "eagle3", **TREE))
    build = BuildConfig("float32", **LIMITS)
    return cached_engine(plan_build(models.folder(CASE), build, speculation))


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(folder, skip_tokenizer_init=True) as llm:
        yield llm


def test_the_folder(folder: Path, llm: LLM) -> None:
    """Nothing that the head borrows is stored or held a second time."""
    draft = llm.config.draft
    assert isinstance(draft, EagleConfig) and draft.capture_layers == (0, 1)
    assert llm.config.speculation is not None and llm.config.speculation.method == "eagle3"
    stored = read_weights(folder / "draft" / WEIGHTS_NAME)
    assert stored["token_map"].tolist() == list(IDS)
    assert not any(name.startswith("target.") or "embed" in name for name in stored)
    engine: Any = llm
    shared = engine._target._session._weights["embed.weight"]
    for session in (engine._drafts[0]._step, engine._drafts[0]._rollout):
        borrowed = [w for n, w in session._weights.items() if n.endswith("target.embed.weight")]
        assert [w.data_ptr() for w in borrowed] == [shared.data_ptr()]


@pytest.mark.parametrize(
    "params", [[PARAMS_40] * 4, SAMPLED, PENALISED], ids=["greedy", "sampled", "penalised"]
)
def test_equals_eager(
    models: TinyModels, head: Path, llm: LLM, params: list[SamplingParams]
) -> None:
    """Tokens and even the drafts: the same trees are proposed and accepted."""
    # Prompts that no earlier test has left in the prefix cache, in parts longer than a block.
    prompts = [
        [int(params[0].repetition_penalty > 1), int(params[0].temperature == 0), *p]
        for p in PROMPTS
    ]
    before = llm.get_metrics()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    after = llm.get_metrics()
    config = eagle(head, "eagle3", **TREE)
    with open_llm(models.folder(CASE), config, **LIMITS) as eager:
        expected = eager.generate(prompts, params, use_tqdm=False)
    with open_llm(models.folder(CASE), **LIMITS) as plain:
        assert tokens(plain.generate(prompts, params, use_tqdm=False)) == tokens(expected)
    assert tokens(outputs) == tokens(expected)
    for ours, other in zip(outputs, expected, strict=True):
        assert ours.metrics.to_dict() == other.metrics.to_dict()
    if params[0].temperature:
        assert after["num_accepted_tokens"] > before["num_accepted_tokens"]
    assert_no_leak(llm)


def test_greedy_equals_transformers(models: TinyModels, llm: LLM) -> None:
    expected = [models.greedy(CASE, prompt) for prompt in PROMPTS]
    assert tokens(llm.generate(PROMPTS, PARAMS_40, use_tqdm=False)) == expected


@pytest.mark.parametrize("name", WAYS)
def test_other_ways_with_the_same_engine(folder: Path, head: Path, llm: LLM, name: str) -> None:
    numbers = {"num_speculative_tokens": 2, "topk": 2, "num_draft_tokens": 4}
    shallow = eagle(head, "eagle3", **numbers)
    assert_way(folder, llm, name, shallow, PROMPTS, ([PARAMS_40] * 4, PENALISED))


def test_two_engine_calls_a_step(llm: LLM) -> None:
    assert_two_engine_calls(llm, PROMPTS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "eagle"}, "method 'eagle' was asked for, the engine's .* built for 'eagle3'"),
        ({"method": "draft_model"}, "method 'draft_model' .* built for 'eagle3'"),
        ({"topk": 3}, "topk=3 was asked for, the engine's rollout has 2"),
        ({"topk": 1, "num_draft_tokens": 4}, "topk=1 was asked for, .* has 2"),
        ({"num_speculative_tokens": 4}, "num_steps=4 was asked for, .* at most 3"),
        ({"num_draft_tokens": 7}, "num_draft_tokens=7 was asked for, .* at most 6"),
    ],
)
def test_another_contract_is_refused(
    folder: Path, head: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        LLM(folder, {**eagle(head, "eagle3", **TREE), **change}, skip_tokenizer_init=True)


def test_a_static_tree_is_refused(folder: Path, head: Path) -> None:
    static = eagle(head, "eagle3", eagle_choices=[[0], [1], [0, 0]])
    with pytest.raises(ConfigError, match=r"choices \[\[0\], \[1\], \[0, 0\]\].*\(dynamic\)"):
        LLM(folder, static, skip_tokenizer_init=True)


def test_another_head_is_refused(models: TinyModels, folder: Path, tmp_path: Path) -> None:
    other = random_eagle3(models.hf(CASE), tmp_path, IDS, seed=8)
    with pytest.raises(ConfigError, match=r"fingerprint .* is not the one in the engine"):
        LLM(folder, eagle(other, "eagle3", **TREE), skip_tokenizer_init=True)


def test_compiled_once(
    models: TinyModels, head: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another target and another head of these shapes start without a compiler."""

    def refuse(*args: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(graph_cache, "_compile_all", refuse)
    hf = copy.deepcopy(models.hf(CASE))
    with torch.no_grad():
        hf.get_input_embeddings().weight.mul_(1.5)
    target = models.save(hf, "llama-louder")
    other = random_eagle3(hf, tmp_path / "other", range(60, 84), seed=9)
    config = eagle(other, "eagle3", **TREE)
    with (
        open_llm(target, config, backend="aoti", **LIMITS) as compiled,
        open_llm(target, config, **LIMITS) as eager,
    ):
        found, expected = (
            [(tokens([o]), o.metrics.to_dict()) for o in llm.generate(PROMPTS, SAMPLED)]
            for llm in (compiled, eager)
        )
        assert found == expected


def test_the_first_step_alone(models: TinyModels, head: Path, folder: Path) -> None:
    """Its drafts are those of depth 1 in the whole rollout, and more where that kept fewer."""
    columns = greedy_sampling(2)
    found: list[list[torch.Tensor]] = []
    with (
        LLM(folder, skip_tokenizer_init=True) as compiled,
        open_llm(models.folder(CASE), eagle(head, "eagle3", **TREE), **LIMITS) as eager,
    ):
        for llm in (compiled, eager):
            (engine,) = llm._drafts
            assert isinstance(engine, ModelEngine)
            states = torch.randn(4, engine._hidden_in, generator=torch.manual_seed(0))
            size = llm.config.layout.blocks_per_sequence
            blocks = torch.arange(2 * size, dtype=torch.int32).reshape(2, size)
            groups = [RowGroup([5, 6, 7], 0, blocks[0]), RowGroup([9], 0, blocks[1])]
            *first, scores = engine.rollout(groups, columns, states, first_step_only=True)
            tokens, parents, all_scores = engine.rollout(groups, columns, states)
            assert (first[1] == -1).all() and first[0].shape == (2, TREE["topk"])
            for request in range(2):
                kept = parents[request] == -1
                count = int(kept.sum())
                assert torch.equal(tokens[request][kept], first[0][request][:count])
                torch.testing.assert_close(all_scores[request][kept], scores[request][:count])
            found.append([*first, scores])
    for own, other in zip(*found, strict=True):
        torch.testing.assert_close(own, other)


def test_a_rollout_of_one_step(models: TinyModels, head: Path) -> None:
    """It feeds the parts of a prompt itself: no other graph stands beside it."""
    one_step = eagle(head, "eagle3", num_speculative_tokens=1, topk=2, num_draft_tokens=3)
    build = BuildConfig("float32", **LIMITS)
    plan = plan_build(models.folder(CASE), build, parse_speculative_config(one_step))
    folder = cached_engine(plan)
    assert {path.name for path in (folder / "draft").iterdir()} == {"rollout.pt2", WEIGHTS_NAME}
    prompts = [random_prompt(213, LIMITS["max_num_tokens"] + 20), PROMPTS[0]]
    with (
        LLM(folder, skip_tokenizer_init=True) as compiled,
        open_llm(models.folder(CASE), one_step, **LIMITS) as eager,
    ):
        outputs = compiled.generate(prompts, SAMPLED[:2], use_tqdm=False)
        expected = eager.generate(prompts, SAMPLED[:2], use_tqdm=False)
    assert tokens(outputs) == tokens(expected)
    for ours, other in zip(outputs, expected, strict=True):
        assert ours.metrics.to_dict() == other.metrics.to_dict()
    assert any(output.metrics.num_accepted_tokens for output in outputs)
