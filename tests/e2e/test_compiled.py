"""Compiled engines of every kind of draft: they give what the eager modules give, bit for bit in
tokens, and draft what those draft."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import trtspec.builder.graph_cache as graph_cache
from trtspec import LLM, RequestOutput, SamplingParams
from trtspec.backends.packing import RowGroup
from trtspec.backends.shape import WEIGHTS_NAME
from trtspec.builder.plan import plan_build
from trtspec.config.build_config import BuildConfig
from trtspec.engine.folder import read_weights
from trtspec.executor.engines.buckets import greedy_sampling
from trtspec.executor.engines.pass_rollout import StopRule
from trtspec.speculative.options import parse_speculative_config

from .. import inside
from ..compiled_engines import LIMITS, NAMES, Pair, Pairs, build_one, noisy
from .eagle_heads import save_right_heads
from .helpers import (
    PARAMS_40,
    WAYS,
    assert_engine_calls,
    assert_no_leak,
    assert_way,
    open_llm,
    random_prompt,
    tokens,
)

pytestmark = pytest.mark.slow

GREEDY = [PARAMS_40] * 4
SAMPLED = [SamplingParams(40, temperature=0.8, seed=seed) for seed in range(4)]
PENALISED = [replace(params, repetition_penalty=1.2, top_p=0.9) for params in SAMPLED]
# What is compiled into a draft shows where calls are padded, cut or small; what the executor does
# with them beyond that does not ask whose they are.
USUAL = ("shallow", "chunked", "padded")
# README's command compiles a draft model; `.ci/run` also EAGLE-3's tree, for tests/e2e/test_int8.py
# a rounded head, and what the C++ programs run. EAGLE-1 and MTP modules roll out as that does,
# PARD and P-EAGLE guess with what draft models and heads are made of, Medusa's heads and DDTree's
# network make one call. Their graphs are recorded, and run without a compiler.
USUALLY = ("chain",)


def marked(name: str, often: bool = True) -> list[pytest.MarkDecorator]:
    if name == "eagle3":
        return [pytest.mark.ci]
    return [] if often and name in USUALLY else [pytest.mark.matrix]


EACH = [pytest.param(name, marks=marked(name)) for name in NAMES]
CROSS = [
    pytest.param(name, way, marks=marked(name, way in USUAL)) for name in NAMES for way in WAYS
]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    return Pairs(tmp_path_factory.mktemp("pairs"))


class Engine:
    """An engine folder, opened once, and what it was built from."""

    def __init__(self, pair: Pair, folder: Path) -> None:
        self.pair, self.folder = pair, folder
        self.llm = LLM(folder, skip_tokenizer_init=True)


@pytest.fixture(scope="module")
def engines(pairs: Pairs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Engine]]:
    """By name, each built when first asked for."""

    class Opened(dict[str, Engine]):
        def __missing__(self, name: str) -> Engine:
            pair = pairs.pair(name)
            folder = build_one(tmp_path_factory, pair.target, pair.speculation)
            return self.setdefault(name, Engine(pair, folder))

    opened = Opened()
    yield opened
    for engine in opened.values():
        engine.llm.shutdown()


def run(llm: LLM, prompts: Any, params: list[SamplingParams]) -> list[RequestOutput]:
    return llm.generate(prompts, params, use_tqdm=False)


@pytest.mark.parametrize("name", EACH)
def test_equals_eager(engines: dict[str, Engine], name: str) -> None:
    """Tokens and even the drafts: the same trees are proposed and accepted."""
    engine = engines[name]
    pair, llm = engine.pair, engine.llm
    # Prompts that nothing has left in the prefix cache, in parts longer than a block.
    runs = [
        (params, [[i, *prompt] for prompt in pair.prompts])
        for i, params in enumerate((GREEDY, SAMPLED, PENALISED))
    ]
    before = llm.get_metrics()["num_accepted_tokens"]
    found = [run(llm, prompts, params) for params, prompts in runs]
    assert llm.get_metrics()["num_accepted_tokens"] > before
    assert_no_leak(llm)
    with open_llm(pair.target, **LIMITS) as plain:
        texts = [tokens(run(plain, prompts, params)) for params, prompts in runs]
    with open_llm(pair.target, pair.speculation, **LIMITS) as eager:
        expected = [run(eager, prompts, params) for params, prompts in runs]
    for outputs, others, text in zip(found, expected, texts, strict=True):
        assert tokens(outputs) == tokens(others) == text
        for ours, other in zip(outputs, others, strict=True):
            assert ours.metrics.to_dict() == other.metrics.to_dict()


@pytest.mark.parametrize(("name", "way"), CROSS)
def test_other_ways_with_the_same_engine(engines: dict[str, Engine], name: str, way: str) -> None:
    engine = engines[name]
    prompts = [list(prompt) for prompt in engine.pair.prompts]
    assert_way(engine.folder, engine.llm, way, engine.pair.smaller, prompts, (GREEDY, PENALISED))


@pytest.mark.parametrize("name", EACH)
def test_engine_calls_a_step(engines: dict[str, Engine], name: str) -> None:
    pair = engines[name].pair
    passes = pair.speculation["num_speculative_tokens"] if name == "chain" else 1
    assert_engine_calls(engines[name].llm, [list(p) for p in pair.prompts], passes)


@pytest.mark.parametrize("name", EACH)
def test_the_folder(engines: dict[str, Engine], name: str) -> None:
    """What a draft borrows from its target is neither stored nor held a second time."""
    engine = engines[name]
    stored = read_weights(engine.folder / "draft" / WEIGHTS_NAME)
    assert not any("target." in key for key in stored)
    (held,) = inside.weights(inside.target(engine.llm))
    own = {weight.data_ptr() for weight in held.values()}
    (draft,) = inside.drafts(engine.llm)
    for weights in inside.weights(draft):
        borrowed = {key: weight for key, weight in weights.items() if "target." in key}
        assert all(weight.data_ptr() in own for weight in borrowed.values())
        if name in ("static", "medusa_dynamic"):  # the target's embedding, the target's head
            assert borrowed
    graphs = {path.name for path in (engine.folder / "draft").glob("*.pt2")}
    first = {"medusa": set(), "medusa_dynamic": set(), "modules": {"model.pt2"}}
    first["ddtree"] = first["modules"]
    drafts = {"pass.pt2"} if name == "chain" else {"rollout.pt2"} | first.get(name, {"step.pt2"})
    assert graphs == drafts


def test_the_graph_of_another_mask_token_is_another(pairs: Pairs) -> None:
    """It is part of the code."""
    for name, field in (
        ("pard", "mask_token"), ("p_eagle", "mask_token"), ("ddtree", "mask_token_id"),
    ):  # fmt: skip
        pair = pairs.pair(name)
        speculation = parse_speculative_config(pair.speculation)
        config = plan_build(pair.target, BuildConfig("float32", **LIMITS), speculation).engine
        (own,) = config.drafts
        network = replace(own.network, **{field: getattr(own.network, field) + 1})
        other = replace(config, drafts=(replace(own, network=network),))
        key = graph_cache.graph_key
        assert key(other, "draft/rollout.pt2") != key(config, "draft/rollout.pt2")


def refuse(*args: object) -> None:
    raise AssertionError("compiled again")


@pytest.mark.matrix
def test_compiled_once(
    engines: dict[str, Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another target and another head of these shapes start without a compiler."""
    assert engines["static"]
    monkeypatch.setattr(graph_cache, "_compile_all", refuse)
    pair = Pairs(tmp_path).pair("static")
    target = noisy(pair.target, tmp_path / "target")
    cycling = save_right_heads(tmp_path / "right", 3.0)
    config = {**pair.speculation, "model": str(cycling.eagle1)}
    with (
        open_llm(target, config, backend="aoti", **LIMITS) as compiled,
        open_llm(target, config, **LIMITS) as eager,
    ):
        assert tokens(run(compiled, pair.prompts, SAMPLED)) == tokens(
            run(eager, pair.prompts, SAMPLED)
        )


@pytest.mark.ci
def test_the_first_step_alone(engines: dict[str, Engine]) -> None:
    """Its drafts are those of depth 1 in the whole rollout, and more where that kept fewer."""
    pair, columns = engines["eagle3"].pair, greedy_sampling(2)
    first_step = StopRule(max_depth=1)
    found: list[list[torch.Tensor]] = []
    with (
        LLM(engines["eagle3"].folder, skip_tokenizer_init=True) as compiled,
        open_llm(pair.target, pair.speculation, **LIMITS) as eager,
    ):
        for llm in (compiled, eager):
            (engine,) = inside.drafts(llm)
            states = torch.randn(4, inside.hidden_width(engine), generator=torch.manual_seed(0))
            size = llm.config.layout.blocks_per_sequence
            blocks = torch.arange(2 * size, dtype=torch.int32).reshape(2, size)
            groups = [RowGroup([5, 6, 7], 0, blocks[0]), RowGroup([9], 0, blocks[1])]
            *first, scores = engine.rollout(groups, columns, states, first_step)
            tokens, parents, all_scores = engine.rollout(groups, columns, states)
            assert (first[1] == -1).all() and first[0].shape == (2, pair.speculation["topk"])
            for request in range(2):
                kept = parents[request] == -1
                count = int(kept.sum())
                assert torch.equal(tokens[request][kept], first[0][request][:count])
                torch.testing.assert_close(all_scores[request][kept], scores[request][:count])
            found.append([*first, scores])
    for own, other in zip(*found, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-4)


@pytest.mark.matrix
def test_a_rollout_of_one_step(pairs: Pairs, tmp_path_factory: pytest.TempPathFactory) -> None:
    """It feeds the parts of a prompt itself: no other graph stands beside it."""
    target, usual = pairs.pair("eagle3").target, pairs.pair("eagle3").speculation
    one_step = {**usual, "num_speculative_tokens": 1, "topk": 2, "num_draft_tokens": 3}
    folder = build_one(tmp_path_factory, target, one_step)
    assert {path.name for path in (folder / "draft").iterdir()} == {"rollout.pt2", WEIGHTS_NAME}
    prompts = [random_prompt(213, LIMITS["max_num_tokens"] + 20, 30), random_prompt(210, 30, 30)]
    with (
        LLM(folder, skip_tokenizer_init=True) as compiled,
        open_llm(target, one_step, **LIMITS) as eager,
    ):
        outputs = run(compiled, prompts, SAMPLED[:2])
        expected = run(eager, prompts, SAMPLED[:2])
    assert tokens(outputs) == tokens(expected)
    for ours, other in zip(outputs, expected, strict=True):
        assert ours.metrics.to_dict() == other.metrics.to_dict()
    assert any(output.metrics.num_accepted_tokens for output in outputs)
