"""Draft models whose layers keep states: no text changes, and a draft that is its target's equal is
right about every token, which it is only where each row of its rollouts has the state of its own
path."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from trtspec import LLM, SamplingParams
from trtspec.backends.inputs import EngineInputs
from trtspec.backends.packing import RowGroup
from trtspec.errors import ConfigError, EngineError
from trtspec.executor.engines.model_engine import ModelEngine
from trtspec.executor.schedule.resources import DraftCache
from trtspec.llmapi import resources

from .. import inside
from ..models.tiny_hf import tiny_model
from .families import VOCAB, family_model
from .helpers import (
    TinyModels,
    assert_no_leak,
    chain,
    ngram,
    open_llm,
    random_prompt,
    tokens,
    tree,
    watch,
)
from .hybrid_drafts import hybrid
from .parallel_drafts import pard, save_pard
from .prefix_hits import check_hits_at_every_offset

PROMPTS = [random_prompt(1, 30, VOCAB), random_prompt(2, 6, VOCAB) * 4, random_prompt(3, 5, VOCAB)]
GREEDY = SamplingParams(max_tokens=24)
RUNS = (GREEDY, replace(GREEDY, temperature=0.8, seed=5))
CASES = ("qwen3_5", "granite_hybrid")
"""Of each kind of layers with states a family."""
TIGHT: dict[str, Any] = {
    "max_num_tokens": 16,
    "tokens_per_block": 4,
    "kv_cache_config": {"max_tokens": 84, "snapshot_blocks": 2},
}
"""Prompts in chunks, and too few blocks for all requests."""


@pytest.fixture(scope="module")
def hybrids(tmp_path_factory: pytest.TempPathFactory) -> TinyModels:
    models = TinyModels(tmp_path_factory.mktemp("hybrids"))
    models.hf = cache(lambda case: tiny_model(case) if case == "llama" else family_model(case))
    return models


@cache
def sure(hybrids: TinyModels, case: str) -> Path:
    """The model with sharp distributions: the best path of a tree is that of its best tokens."""
    model = copy.deepcopy(hybrids.hf(case))
    with torch.no_grad():
        model.model.norm.weight.mul_(300)
    return hybrids.save(model, f"{case}-sure")


def drafted(
    llm: LLM, run: SamplingParams, prompts: Sequence[Sequence[int]] = PROMPTS
) -> tuple[list[list[int]], int, int]:
    """Texts, and how many tokens were drafted and accepted."""
    before = llm.get_metrics()
    texts = tokens(llm.generate(prompts, run, use_tqdm=False))
    after = llm.get_metrics()
    asked, right = (after[k] - before[k] for k in ("num_draft_tokens", "num_accepted_tokens"))
    return texts, asked, right


@pytest.mark.parametrize("options", [{}, TIGHT], ids=["ample", "tight"])
@pytest.mark.parametrize("case", CASES)
def test_an_equal_is_always_right(hybrids: TinyModels, case: str, options: dict[str, Any]) -> None:
    """As a chain and in trees; the second time on prefixes of the first."""
    folder = sure(hybrids, case)
    shapes = chain(folder, 3), tree(folder, 2, 3, 8), tree(folder, 4, 3, 30)
    with open_llm(folder, max_seq_len=96) as llm:
        expected = [drafted(llm, run)[0] for run in RUNS]
    for shape in shapes:
        with open_llm(folder, shape, max_seq_len=96, **options) as llm:
            steps = watch(llm)
            for run, texts in 2 * [*zip(RUNS, expected, strict=True)]:
                found, asked, right = drafted(llm, run)
                assert found == texts
                assert right == asked if shape is shapes[0] else right > 0
            # A tree may be cut, but to its best nodes.
            assert llm.get_metrics()["acceptance_rate_per_pos"] == [1, 1, 1]
            assert any(step.num_preempted for step in steps) == bool(options)
            assert_no_leak(llm)


@pytest.mark.parametrize("apart", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_prefixes_at_every_offset(hybrids: TinyModels, case: str, apart: int) -> None:
    """With the drafts, and as many of them right, as where nothing was found."""
    check_hits_at_every_offset(
        hybrids.folder(case), tree(hybrids.draft(case), 2, 3, 8), apart, VOCAB
    )


@pytest.mark.parametrize(
    ("target", "draft"),
    [("llama", "qwen3_5"), ("qwen3_5", "granite_hybrid"), ("granite_hybrid", "llama")],
)
def test_another_family_drafts(hybrids: TinyModels, target: str, draft: str) -> None:
    """Only one of the two keeps states, or each its own."""
    with open_llm(hybrids.folder(target), max_seq_len=96) as llm:
        expected = [drafted(llm, run)[0] for run in RUNS]
    shape = tree(hybrids.folder(draft), 2, 3, 8)
    with open_llm(hybrids.folder(target), shape, max_seq_len=96, **TIGHT) as llm:
        for run, texts in zip(RUNS, expected, strict=True):
            found, asked, _ = drafted(llm, run)
            assert found == texts and asked > 0
        assert_no_leak(llm)


def test_a_copy_drafts(hybrids: TinyModels) -> None:
    """The target itself in fewer bits."""
    folder, copied = hybrids.folder("qwen3_5"), {"method": "self", "num_speculative_tokens": 3}
    with open_llm(folder, copied, max_seq_len=96, **TIGHT) as llm:
        found, asked, right = drafted(llm, GREEDY)
        assert found == [hybrids.greedy("qwen3_5", prompt, 24) for prompt in PROMPTS]
        assert 0 < right < asked
        assert_no_leak(llm)


def never_restored(self: ModelEngine, groups: Sequence[RowGroup]) -> None:
    """Requests that begin on a snapshot go on with what lies in their slot."""


def never_cut(self: DraftCache, request: Any, start: int, end: int) -> list[int]:
    """A call goes on behind a row where a snapshot was to be made."""
    return right_ends(self, request, start, end)[-1:]


right_ends = DraftCache.ends
CONTROLS: dict[str, tuple[Any, str, Any]] = {
    "never restored": (ModelEngine, "_restore_states", never_restored),
    "never cut": (DraftCache, "ends", never_cut),
}


@pytest.mark.parametrize("wrong", CONTROLS)
def test_a_wrong_snapshot_is_found(
    hybrids: TinyModels, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    """By what is right of the drafts behind a prefix."""
    folder, owner = sure(hybrids, "qwen3_5"), CONTROLS[wrong]
    sizes = {"max_seq_len": 96, "tokens_per_block": 4, "kv_cache_config": {"snapshot_blocks": 1}}
    with open_llm(folder, chain(folder, 3), **sizes) as llm:
        monkeypatch.setattr(*owner)
        texts, asked, right = drafted(llm, GREEDY)
        assert right == asked
        longer = [prompt + text for prompt, text in zip(PROMPTS, texts, strict=True)]
        _, asked, right = drafted(llm, GREEDY, longer)
        assert llm.get_metrics()["num_prefix_cache_hits"] > 0
        assert right < asked


def test_passes_step_no_request(hybrids: TinyModels) -> None:
    """Rows of a tree, each with a state of its own, in slots that no request has; a control that
    lets siblings share one is refused by the ops, and one that swaps theirs drafts otherwise."""
    folder = sure(hybrids, "granite_hybrid")
    with open_llm(folder, tree(folder, 2, 3, 8), max_seq_len=96) as llm:
        passes = inside.drafts(llm)[0]._sessions.passes
        books = inside.resources(llm).drafts[0]
        seen: list[list[int]] = []
        run = passes.session.run

        def watched(inputs: EngineInputs) -> Any:
            assert inputs.state_slots is not None
            seen.append(inputs.state_slots.tolist())
            return run(inputs)

        def swapped(inputs: EngineInputs) -> Any:
            slots = inputs.state_slots
            assert slots is not None
            is_beam = slots.min() >= books.states.num_slots
            return run(inputs._replace(state_slots=slots.flip(0) if is_beam else slots))

        passes.session.run = watched
        texts, _, right = drafted(llm, GREEDY)
        beams = [slots for slots in seen if min(slots) >= books.states.num_slots]
        assert 0 < len(beams) < len(seen)
        assert all(len(slots) == len(set(slots)) and len(slots) % 2 == 0 for slots in beams)
        rest = [slots for slots in seen if slots not in beams]
        assert all(max(slots) < books.states.num_states for slots in rest)
        passes.session.run = swapped
        again, _, wrong = drafted(llm, GREEDY)
        assert again == texts and wrong < right


def test_refused(hybrids: TinyModels, tmp_path: Path) -> None:
    """Rollouts of one call, windows that states know nothing of, and states that do not fit, by
    name."""
    folder = hybrids.folder("qwen3_5")
    with pytest.raises(ConfigError, match=r"draft_model.* drafts with Qwen3_5\w+, whose .*'onnx'"):
        open_llm(hybrids.folder("llama"), chain(folder, 3), backend="onnx", max_seq_len=96)
    with pytest.raises(ConfigError, match=r"pard.* drafts with .* keep states"):
        parallel = save_pard(hybrids.hf("qwen3_5"), tmp_path / "pard")
        open_llm(folder, pard(parallel, num_speculative_tokens=3), max_seq_len=96)
    with pytest.raises(ConfigError, match=r"draft_window=8: layers of .* keep states"):
        open_llm(folder, {**chain(folder, 3), "draft_window": 8}, max_seq_len=96)


def test_memory_plan(hybrids: TinyModels, monkeypatch: pytest.MonkeyPatch) -> None:
    """States of the draft count: one a request, and one a row of a pass."""
    folder = hybrids.folder("qwen3_5")
    shape = tree(folder, 4, 3, 20)
    with open_llm(folder, shape, max_seq_len=96, max_batch_size=3) as llm:
        target, draft = inside.target(llm).caches, inside.drafts(llm)[0].caches
        states = inside.resources(llm).target.states.num_slots
        assert [len(b) for b in target._states[:1]] == [states + 1]
        assert [len(b) for b in draft._states[:1]] == [states + 3 * 4]
        own = llm.config.state_bytes(llm.config.drafts, 3, 0)
        assert own == (3 + 1 + 3 + 3 * 4) * target.bytes_per_state
    monkeypatch.setattr(resources, "free_memory", lambda device: own // 2)
    with pytest.raises(EngineError, match="states of max_batch_size 3 requests take"):
        open_llm(folder, shape, max_seq_len=96, max_batch_size=3)


def test_timed_calls_and_members(hybrids: TinyModels) -> None:
    """Rollouts of nobody, by which `hybrid` knows what drafts cost, step no request's state; and as
    one of several the draft changes no text."""
    folder = sure(hybrids, "qwen3_5")
    members = hybrid(chain(folder, 3), ngram(4))
    with open_llm(folder, members, max_seq_len=96, max_batch_size=3) as llm:
        draft, books = inside.drafts(llm)[0], inside.resources(llm).drafts[0]
        own = books.states.num_slots
        for rows in (1, 5):
            for state in draft.caches._states:
                state.fill_(7)
            assert draft.time_call(2, rows) > 0
            for state in draft.caches._states:
                assert (state[:own] == 7).all() and not (state[own:] == 7).all()
        found, asked, _ = drafted(llm, GREEDY)
        assert asked > 0
        assert_no_leak(llm)
    with open_llm(folder, max_seq_len=96) as llm:
        assert drafted(llm, GREEDY)[0] == found


@pytest.mark.slow
def test_a_split_draft(hybrids: TinyModels) -> None:
    """All ranks step and copy their parts of the states."""
    folder = sure(hybrids, "qwen3_5")
    shape = {**tree(folder, 2, 3, 8), "draft_tensor_parallel_size": 2}
    with open_llm(folder, shape, max_seq_len=96, tensor_parallel_size=2) as llm:
        for run in RUNS:
            _, asked, right = drafted(llm, run)
            assert 0 < right < asked
        assert llm.get_metrics()["acceptance_rate_per_pos"] == [1, 1, 1]
        assert_no_leak(llm)
