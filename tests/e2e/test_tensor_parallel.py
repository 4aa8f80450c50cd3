"""A target that is split over processes: its text is the whole one's, with every kind of draft."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from trtspec import LLM, SamplingParams
from trtspec.errors import ConfigError, EngineError

from .every_method import PROMPTS
from .helpers import (
    GREEDY_24,
    SAMPLED_24,
    TinyModels,
    assert_no_leak,
    ngram,
    open_llm,
    tokens,
    tree,
    watch,
)


def split(folder: Path, speculation: Any = None, ranks: int = 2, **options: Any) -> LLM:
    return open_llm(folder, speculation, tensor_parallel_size=ranks, **options)


def processes(llm: LLM) -> list[int]:
    followers = llm._runtime.followers
    assert followers is not None
    return [process.pid for process in followers._processes]


@pytest.mark.parametrize("case", ["llama", "llama3_tied", "llama_linear_biases"])
def test_greedy_text_is_that_of_transformers(models: TinyModels, case: str) -> None:
    """Two heads of K and V over two ranks, a vocabulary of an odd number of tokens, a tied head,
    biases behind the sums."""
    expected = [models.greedy(case, prompt, 24) for prompt in PROMPTS]
    with split(models.folder(case)) as llm:
        assert tokens(llm.generate(PROMPTS, GREEDY_24, use_tqdm=False)) == expected
        assert_no_leak(llm)


def test_drafts_change_nothing(models: TinyModels) -> None:
    """In a batch, in chunks, over kept prefixes and behind preemptions, greedy and sampled."""
    folder, draft = models.folder("llama"), models.draft("llama")
    with split(folder) as llm:
        expected = [
            tokens(llm.generate(PROMPTS, params, use_tqdm=False))
            for params in (GREEDY_24, SAMPLED_24)
        ]
    small = {"max_num_tokens": 40, "kv_cache_config": {"max_tokens": 160}}
    for speculation in (ngram(4), tree(draft, 2, 3, 7)):
        with split(folder, speculation, **small) as llm:
            steps = watch(llm)
            for params, text in zip((GREEDY_24, SAMPLED_24), expected, strict=True):
                assert tokens(llm.generate(PROMPTS, params, use_tqdm=False)) == text
            assert any(step.num_preempted for step in steps)
            assert llm.get_metrics()["num_accepted_tokens"] > 0
            assert_no_leak(llm)


def test_a_rank_that_is_killed_ends_all_requests(models: TinyModels) -> None:
    """With the reason, within seconds; and nothing of the group stays."""
    before = set(os.listdir("/dev/shm"))
    with split(models.folder("llama"), ranks=2) as llm:
        (pid,) = processes(llm)
        params = SamplingParams(max_tokens=90, ignore_eos=True)
        handles = [llm.generate_async([1, 2, 3], params, streaming=True) for _ in range(3)]
        next(iter(handles[0]))
        os.kill(pid, signal.SIGKILL)
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
