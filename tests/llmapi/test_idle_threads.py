"""What an LLM leaves behind when it has nothing to do."""

from __future__ import annotations

import os
import time

import pytest
import torch

from trtspec import LLM, SamplingParams


def _threads() -> set[str]:
    return set(os.listdir("/proc/self/task"))


@pytest.mark.skipif(torch.get_num_threads() < 2, reason="needs two cores for a team of threads")
def test_an_idle_worker_has_no_team() -> None:
    """A team that waits counts among OpenMP's threads and slows those of other LLMs."""
    with LLM("trtspec-tiny", backend="eager", skip_tokenizer_init=True) as llm:
        idle = _threads()
        for _ in range(2):
            stream = llm.generate_async([5, 6, 7], SamplingParams(max_tokens=20), True)
            team: set[str] = set()
            for _ in stream:
                team |= _threads() - idle
            assert team
            deadline = time.monotonic() + 10
            while _threads() - idle and time.monotonic() < deadline:
                time.sleep(0.001)
            assert not _threads() - idle
