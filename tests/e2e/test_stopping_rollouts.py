"""Rollouts that end before their last depth: texts stay, drafts are a part of whole ones."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from trtspec.backends.packing import RowGroup
from trtspec.builder.plan import plan_build
from trtspec.config.build_config import BuildConfig
from trtspec.errors import ConfigError
from trtspec.executor.engines.buckets import greedy_sampling
from trtspec.executor.engines.pass_rollout import StopRule
from trtspec.speculative.options import parse_speculative_config

from .. import inside
from .helpers import (
    GREEDY_24,
    SAMPLED_24,
    TinyModels,
    assert_no_leak,
    chain,
    eight_prompts,
    open_llm,
    random_prompt,
    tokens,
    tree,
)

PROMPTS = eight_prompts(720)
RUNS = (GREEDY_24, SAMPLED_24)
P_MIN = 0.3
Rolled = tuple[Tensor, Tensor, Tensor]


@pytest.fixture(scope="module")
def texts(models: TinyModels) -> list[list[list[int]]]:
    with open_llm(models.folder("llama")) as llm:
        return [tokens(llm.generate(PROMPTS, params, use_tqdm=False)) for params in RUNS]


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_p_min(models: TinyModels, texts: list[list[list[int]]], shape: str, batch: int) -> None:
    """No token is drafted that the draft gives less, nor a pass made behind such tokens alone."""
    draft = models.draft("llama")
    config = chain(draft, 6) if shape == "chain" else tree(draft, 2, 4, 8)
    calls = []
    for p_min in (0.0, P_MIN):
        wanted = {**config, "draft_p_min": p_min}
        with open_llm(models.folder("llama"), wanted, max_batch_size=batch) as llm:
            gains = watch_gains(llm)
            for params, text in zip(RUNS, texts, strict=True):
                assert tokens(llm.generate(PROMPTS, params, use_tqdm=False)) == text
            assert_no_leak(llm)
            metrics = llm.get_metrics()
        least = min(gain for gain in gains if gain > -math.inf)
        assert (least >= math.log(P_MIN) - 1e-6) == bool(p_min)
        calls.append((metrics["num_draft_calls"], metrics["num_draft_tokens"]))
    assert calls[1][0] < calls[0][0] and calls[1][1] < calls[0][1]


def watch_gains(llm: Any) -> list[float]:
    """What the draft gives each node of all rollouts from now on behind its parent."""
    (engine,) = inside.drafts(llm)
    rollout, gains = engine.rollout, []

    def watched(*given: Any) -> Rolled:
        found: Rolled = rollout(*given)
        for _, parents, scores in zip(*found, strict=True):
            own = scores.tolist()
            for parent, score in zip(parents.tolist(), own, strict=True):
                above = own[parent] if parent >= 0 else 0.0
                gains.append(score - above if score > -math.inf else -math.inf)
        return found

    engine.rollout = watched
    return gains


@pytest.mark.parametrize("shape", [(1, 6), (2, 4), (3, 5)], ids=str)
def test_equals_whole_rollouts(
    models: TinyModels, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop of passes drafts what one call does, as far as it goes."""
    k, depth = shape
    config = tree(models.draft("llama"), k, depth, k * depth + 1)
    found: list[list[Rolled]] = []
    for _ in range(2):
        with open_llm(models.folder("llama"), config) as llm:
            (engine,) = inside.drafts(llm)
            size = llm.config.layout.blocks_per_sequence
            blocks = torch.arange(3 * size, dtype=torch.int32).reshape(3, size)
            groups = [RowGroup(random_prompt(i, 3 + 9 * i), 0, blocks[i]) for i in range(3)]
            columns = greedy_sampling(3)._replace(temperature=torch.tensor([0.0, 0.8, 1.0]))
            rules = [StopRule(), StopRule(max_depth=1)]
            if not found:
                assert engine.rolls_first_step and inside.rollout(engine) is None
                rules.append(StopRule(pace=1e9))  # whole ones have told what a pass takes
            found.append([engine.rollout(groups, columns, None, rule) for rule in rules])
        inside.draft_in_one_call(monkeypatch)
    (own, first, stopped), (whole, whole_first) = found
    for ours, theirs in ((own, whole), (first, whole_first), (stopped, whole_first)):
        assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])
        torch.testing.assert_close(ours[2], theirs[2])


def test_a_rollout_is_as_deep_as_a_text_can_use(models: TinyModels) -> None:
    params = [replace(GREEDY_24, max_tokens=n) for n in (2, 3, 5)]
    with open_llm(models.folder("llama"), chain(models.folder("llama"), 6)) as llm:
        calls = []
        for each in params:
            before = llm.get_metrics()["num_draft_calls"]
            llm.generate(random_prompt(5, 7), each, use_tqdm=False)
            calls.append(llm.get_metrics()["num_draft_calls"] - before)
    # One feeds the prompt. Of so many tokens the first is the prompt's, the last is the bonus.
    assert calls == [1, 1 + 1, 1 + 3]


@pytest.mark.parametrize("name", ["p_min", "draft_p_min", "spec_draft_p_min"])
def test_p_min_of_other_methods_is_refused(name: str) -> None:
    given = {"model": "x", "num_speculative_tokens": 3, name: 0.5}
    for method in ("draft_model", "self"):
        own = given if method == "draft_model" else {"num_speculative_tokens": 3, name: 0.5}
        config: Any = parse_speculative_config({"method": method, **own})
        assert config.p_min == config.least_probability == 0.5
    for method in ("eagle3", "mtp", "pard"):
        with pytest.raises(ConfigError, match=f"{name}.*draft_model and self"):
            parse_speculative_config({"method": method, **given})
    for value in (-0.1, 1.0, math.nan):
        with pytest.raises(ConfigError, match=r"p_min=.*at least 0 and below 1"):
            parse_speculative_config({"method": "draft_model", **given, name: value})


def test_p_min_needs_calls_of_one_pass(models: TinyModels) -> None:
    pytest.importorskip("onnxruntime")
    config = parse_speculative_config({**chain(models.draft("llama"), 3), "p_min": 0.5})
    build = BuildConfig(backend="onnx", dtype="float32", max_batch_size=1)
    with pytest.raises(ConfigError, match=r"p_min=0.5 ends drafts .* backend onnx on cpu"):
        plan_build(models.folder("llama"), build, config, skip_tokenizer_init=True)
