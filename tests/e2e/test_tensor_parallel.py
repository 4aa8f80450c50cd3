"""A target that is split over processes: its text is the whole one's, with every kind of draft."""

from __future__ import annotations

import os
import signal
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, PreTrainedModel

from trtspec import LLM, SamplingParams, build
from trtspec.errors import ConfigError, EngineError

from .every_method import LIMITS, METHODS, PROMPTS
from .families import family_model
from .helpers import (
    GREEDY_24,
    SAMPLED_24,
    WAYS,
    TinyModels,
    assert_no_leak,
    assert_way,
    chain,
    ngram,
    open_llm,
    tokens,
    watch,
)
from .near_ties import assert_same_but_for_ties

RUNS = (GREEDY_24, SAMPLED_24)
SMALL: dict[str, Any] = {"max_num_tokens": 40, "kv_cache_config": {"max_tokens": 160}}
"""So that prompts are fed in chunks and requests are preempted."""


def split(folder: Path, speculation: Any = None, ranks: int = 2, **options: Any) -> LLM:
    return open_llm(folder, speculation, tensor_parallel_size=ranks, **options)


def texts(llm: LLM) -> list[list[list[int]]]:
    """Of all `RUNS`."""
    return [tokens(llm.generate(PROMPTS, params, use_tqdm=False)) for params in RUNS]


def assert_texts(models: TinyModels, case: str, found: list[list[list[int]]]) -> None:
    """They are those of one process, but for near ties."""
    with open_llm(models.folder(case)) as llm:
        expected = texts(llm)
    assert_same_texts(models.hf(case), found, expected)


def assert_same_texts(
    model: PreTrainedModel, found: list[list[list[int]]], expected: list[list[list[int]]]
) -> None:
    """Those of `RUNS`, but for near ties."""
    assert_same_but_for_ties(model, PROMPTS, found[0], expected[0], GREEDY_24)
    for i, params in enumerate(SAMPLED_24):
        part = slice(i, i + 1)
        pair = found[1][part], expected[1][part]
        assert_same_but_for_ties(model, PROMPTS[part], *pair, params)


@pytest.mark.parametrize(("case", "ranks"), [("llama3_tied", 2), ("llama", 4)])
def test_texts_are_those_of_one_process(models: TinyModels, case: str, ranks: int) -> None:
    """A vocabulary of an odd number of tokens, a tied head; more ranks than heads of keys."""
    with split(models.folder(case), ranks=ranks) as llm:
        assert_texts(models, case, texts(llm))
        assert_no_leak(llm)


@pytest.mark.parametrize("method", ["ngram", "hybrid"])
def test_drafts_change_nothing(models: TinyModels, tmp_path: Path, method: str) -> None:
    """In a batch, in chunks, over kept prefixes and behind preemptions; hybrid: among others with a
    head of the target's states that borrows its embedding and is split as well, and with a draft
    model that is not."""
    folder, speculation = METHODS[method](models, tmp_path)
    for member in (speculation or {}).get("drafters", [])[:1]:
        member["draft_tensor_parallel_size"] = 2
    with split(folder) as llm:
        expected = texts(llm)
    with split(folder, speculation, **SMALL) as llm:
        steps = watch(llm)
        assert texts(llm) == expected
        assert any(step.num_preempted for step in steps)
        assert llm.get_metrics()["num_accepted_tokens"] > 0
        assert_no_leak(llm)


def made(
    models: TinyModels, root: Path, method: str, draft_ranks: int
) -> tuple[Path, dict[str, Any] | None]:
    """An entry of `METHODS` whose drafts are split over so many ranks, where they can be."""
    folder, speculation = METHODS[method](models, root)
    if speculation is None:
        return folder, None
    for draft in speculation.get("drafters", [speculation]):
        if draft["method"] not in ("ngram", "medusa"):
            draft["draft_tensor_parallel_size"] = draft_ranks
    return folder, speculation


DRAFT_RANKS = [
    *((method, 2) for method in sorted(METHODS.keys() - {"plain", "ngram", "medusa"})),
    *((method, 1) for method in sorted(METHODS.keys() - {"assistant"})),
]


@pytest.mark.matrix
@pytest.mark.parametrize(("method", "draft_ranks"), DRAFT_RANKS)
def test_every_method_is_that_of_one_process(
    models: TinyModels, tmp_path: Path, method: str, draft_ranks: int
) -> None:
    folder, speculation = made(models, tmp_path, method, draft_ranks)
    with open_llm(folder) as llm:
        expected = texts(llm)
    with split(folder, speculation) as llm:
        found = texts(llm)
        assert_no_leak(llm)
    if found != expected:
        model = AutoModelForCausalLM.from_pretrained(folder)
        assert_same_texts(model, found, expected)


@pytest.mark.matrix
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("method", "draft_ranks"), DRAFT_RANKS)
def test_every_method_in_every_way(
    models: TinyModels, tmp_path: Path, method: str, draft_ranks: int, ranks: int
) -> None:
    checkpoint, speculation = made(models, tmp_path, method, 1 if draft_ranks == 1 else ranks)
    options = {"backend": "eager", "dtype": "float32", "skip_tokenizer_init": True}
    folder = build(checkpoint, speculation, tensor_parallel_size=ranks, **options)
    with LLM(folder, False, skip_tokenizer_init=True) as llm:
        for way in WAYS:
            assert_way(folder, llm, way, speculation or ngram(2), PROMPTS, RUNS)


@pytest.mark.parametrize(
    ("family", "by_expert"), [("qwen2_moe", True), ("qwen3_5", False)], ids=["experts", "states"]
)
def test_texts_of_families(tmp_path: Path, family: str, by_expert: bool) -> None:
    """Experts of a softmax router, shared out whole; states, with snapshots, replays of accepted
    drafts, preemption. Each drafts for itself, split as well, and so is nearly always right."""
    models = TinyModels(tmp_path)
    models.hf = cache(family_model)
    folder, options = models.folder(family), {**SMALL, "enable_expert_parallel": by_expert}
    with split(folder, {**chain(folder, 3), "draft_tensor_parallel_size": 2}, **options) as llm:
        assert_texts(models, family, texts(llm))
        metrics = llm.get_metrics()
        assert metrics["num_accepted_tokens"] > 0.9 * metrics["num_draft_tokens"] > 0
        assert_no_leak(llm)


def test_quantised_weights_and_inputs(models: TinyModels) -> None:
    """Inputs are rounded rank by rank, so the text is another one; drafts change nothing of it."""
    options = {"weight_dtype": "int8", "kv_cache_config": {"dtype": "int8"}}
    with split(models.folder("llama"), **options) as llm:
        expected = texts(llm)
    drafts = {"method": "self", "num_speculative_tokens": 3}
    with split(models.folder("llama"), drafts, max_num_tokens=40, **options) as llm:
        assert texts(llm) == expected
        assert llm.get_metrics()["num_accepted_tokens"] > 0


@pytest.mark.slow
def test_compiled_graphs_meet_in_the_same_order(models: TinyModels) -> None:
    """All ranks run one graph, by weights that say which rank they are."""
    speculation = chain(models.draft("llama"), 3)
    with split(models.folder("llama"), speculation, backend="aoti", **LIMITS) as llm:
        assert_texts(models, "llama", texts(llm))
        assert llm.get_metrics()["num_accepted_tokens"] > 0


def test_a_rank_that_is_killed_ends_all_requests(models: TinyModels) -> None:
    """With the reason, within seconds; and nothing of the group stays. It may have to come to a
    call of the target, or of the draft."""
    before = set(os.listdir("/dev/shm"))
    drafts = {**chain(models.draft("llama"), 3), "draft_tensor_parallel_size": 2}
    with split(models.folder("llama"), drafts, ranks=2) as llm:
        followers = llm._runtime.followers
        assert followers is not None
        (process,) = followers._processes
        params = SamplingParams(max_tokens=90, ignore_eos=True)
        handles = [llm.generate_async([1, 2, 3], params, streaming=True) for _ in range(3)]
        next(iter(handles[0]))
        os.kill(process.pid, signal.SIGKILL)
        for handle in handles:
            error = handle.wait(30).error
            assert isinstance(error, EngineError)
            assert "rank 1 of 2 was killed by signal 9" in str(error)
        with pytest.raises(EngineError, match="rank 1 of 2 was killed by signal 9; make a new LLM"):
            llm.generate([1, 2, 3])
        assert "killed by signal 9" in str(llm.fault)
    assert set(os.listdir("/dev/shm")) <= before


def test_what_does_not_divide_is_refused_with_both_numbers(models: TinyModels) -> None:
    with pytest.raises(ConfigError, match="num_kv_heads is 2, tensor_parallel_size 3"):
        split(models.folder("llama"), ranks=3)
    with pytest.raises(ConfigError, match="num_heads is 4, which tensor_parallel_size 8"):
        split(models.folder("llama"), ranks=8)
