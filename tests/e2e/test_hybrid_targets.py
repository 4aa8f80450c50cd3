"""Targets whose layers keep states: what their own modules draft, texts that end early, and whether
a wrong state would be seen."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import pytest
import torch

from trtspec import LLM, SamplingParams
from trtspec.errors import ConfigError
from trtspec.executor.engines.model_engine import ModelEngine
from trtspec.executor.engines.step_states import StateMoves
from trtspec.executor.schedule.resources import ResourceManager
from trtspec.executor.step.step_plan import StepPlan
from trtspec.executor.step.step_result import StepResult
from trtspec.models.mixers.gated_delta import GatedDelta
from trtspec.models.mixers.mamba2 import Mamba2
from trtspec.models.state_rows import StateRows
from trtspec.ops.state_walk import StateWalk

from .. import inside
from .families import VOCAB, family_model
from .helpers import TinyModels, assert_no_leak, ngram, open_llm, random_prompt, tokens, tree
from .hybrid_modules import add_hybrid_modules, hybrid_module
from .mtp_modules import guesses_of, mtp
from .prefix_hits import check_hits_at_every_offset
from .students import student
from .test_mtp_behind import watch_guesses

PROMPTS = [random_prompt(1, 30, VOCAB), random_prompt(2, 6, VOCAB) * 4, random_prompt(3, 5, VOCAB)]
GREEDY = SamplingParams(max_tokens=24)
RUNS = (GREEDY, replace(GREEDY, temperature=0.8, seed=5))
MIXERS = {"qwen3_5": GatedDelta, "granite_hybrid": Mamba2}
"""Of each kind of layers with states a family, and the module."""
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


@cache
def draft(hybrids: TinyModels, case: str) -> Path:
    """Often right about a target's texts."""
    read = [prompt + hybrids.greedy(case, prompt, 24) for prompt in PROMPTS]
    return hybrids.save(student(read), f"{case}-student")


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


@pytest.mark.parametrize("case", MIXERS)
def test_padded_calls(hybrids: TinyModels, case: str) -> None:
    """As for CUDA graphs: rows of nobody change no state."""
    expected = [hybrids.greedy(case, prompt, 24) for prompt in PROMPTS]
    options = {"cuda_graph_config": True, "max_batch_size": 4}
    for speculation in (None, tree(draft(hybrids, case), 2, 3, 8)):
        with open_llm(hybrids.folder(case), speculation, max_seq_len=96, **options) as llm:
            assert texts(llm)[0] == expected
            assert_no_leak(llm)


@pytest.mark.parametrize("case", MIXERS)
def test_aborts(hybrids: TinyModels, case: str) -> None:
    """Of texts beside others that go on; their states are others' then."""
    prompts = [PROMPTS[i % 3] for i in range(9)]
    speculation = tree(draft(hybrids, case), 2, 3, 8)
    options: dict[str, Any] = {**TIGHT, "max_batch_size": 4}
    with open_llm(hybrids.folder(case), speculation, max_seq_len=96, **options) as llm:
        running = [llm.generate_async(prompt, GREEDY, streaming=True) for prompt in prompts]
        for i, handle in enumerate(running):
            for output in handle:
                if i % 3 != 1 and len(output.outputs[0].token_ids) >= 3 + i:
                    handle.abort()
        for i, handle in enumerate(running):
            text = handle.result(60).outputs[0].token_ids
            expected = hybrids.greedy(case, prompts[i], 24)
            assert text == expected[: len(text)] and (len(text) == 24 or i % 3 != 1)
        assert_no_leak(llm)


@pytest.mark.parametrize("case", MIXERS)
def test_timed_calls_step_a_state(hybrids: TinyModels, case: str) -> None:
    """One that no request has, once a row: what rows cost is measured with it."""
    with open_llm(hybrids.folder(case), max_seq_len=96, max_batch_size=2) as llm:
        target = inside.target(llm)
        kinds, buffers = chain(*target.caches.kinds), target.caches.all
        states = [b for b, kind in zip(buffers, kinds, strict=True) if kind == "slot"]
        for rows in (1, 3):
            before = [state.clone() for state in states]
            assert target.time_call(2, rows) > 0
            for state, old in zip(states, before, strict=True):
                assert torch.equal(state[:-1], old[:-1]) and not torch.equal(state[-1], old[-1])


def accepts_all(self: ResourceManager, plan: StepPlan, result: StepResult) -> StateMoves:
    """Every node, right or wrong."""
    rows = [list(range(1 + count)) for count in result.drafts.counts]
    start = [0, *accumulate(map(len, rows))]
    return right_moves(self, plan, replace(result, start=start, rows=[*chain(*rows)]))


def accepts_none(self: ModelEngine, taken: Any) -> None:
    """Accepted rows leave nothing."""


def row_before(rows: StateRows) -> StateWalk:
    """Of siblings the second one reads the state of the first."""
    walk = right_walk(rows)
    place = torch.arange(len(walk.tree_mask)) - walk.query_start[walk.requests()]
    return walk._replace(tree_mask=(2 << place)[:, None] - 1)


def tail_forgotten(self: GatedDelta | Mamba2, *given: Any) -> None:
    """Accepted rows are taken in by the state alone."""
    *_, cache = given
    before = cache[0].clone()
    right_replays[type(self)](self, *given)
    cache[0].copy_(before)


def one_node_late(self: GatedDelta | Mamba2, *given: Any) -> None:
    """Accepted rows are taken in but for the last of each request."""
    slots, rows, starts, cache = given
    counts = starts.diff() - 1
    kept = [
        rows[first : first + n]
        for first, n in zip(starts[:-1].tolist(), counts.tolist(), strict=True)
    ]
    left = torch.cat([starts.new_zeros(1), counts.cumsum(0).int()])
    right_replays[type(self)](self, slots, torch.cat(kept), left, cache)


right_moves, right_walk = ResourceManager.state_moves, StateRows.walk
right_replays: dict[type, Any] = {mixer: mixer.replay for mixer in MIXERS.values()}
CONTROLS: dict[str, tuple[Any, str, Any]] = {
    "all nodes": (ResourceManager, "state_moves", accepts_all),
    "no node": (ModelEngine, "_replay", accepts_none),
    "row before": (StateRows, "walk", row_before),
    "no tail": (None, "replay", tail_forgotten),
    "one node late": (None, "replay", one_node_late),
}
"""What is replaced by something wrong; None: the mixer."""


@pytest.mark.parametrize("wrong", CONTROLS)
@pytest.mark.parametrize("case", MIXERS)
def test_a_wrong_state_is_found(
    hybrids: TinyModels, monkeypatch: pytest.MonkeyPatch, case: str, wrong: str
) -> None:
    """The controls."""
    owner, name, other = CONTROLS[wrong]
    expected = [hybrids.greedy(case, prompt, 24) for prompt in PROMPTS]
    speculation = tree(draft(hybrids, case), 3, 3, 12)
    with open_llm(hybrids.folder(case), speculation, max_seq_len=96) as llm:
        assert tokens(llm.generate(PROMPTS, GREEDY, use_tqdm=False)) == expected
        monkeypatch.setattr(MIXERS[case] if owner is None else owner, name, other)
        assert tokens(llm.generate(PROMPTS, GREEDY, use_tqdm=False)) != expected


@pytest.mark.parametrize("apart", [1, 2])
@pytest.mark.parametrize("case", MIXERS)
def test_prefixes_at_every_offset(hybrids: TinyModels, case: str, apart: int) -> None:
    check_hits_at_every_offset(hybrids.folder(case), ngram(4), apart, VOCAB)


@pytest.mark.parametrize("case", MIXERS)
def test_refused(hybrids: TinyModels, case: str) -> None:
    """Backends that keep no states, by name."""
    folder = hybrids.folder(case)
    for backend in ("onnx", "tensorrt"):
        with pytest.raises(ConfigError, match=f"layers that keep states, and graphs .*{backend}"):
            open_llm(folder, backend=backend, max_seq_len=96)
