"""How many blocks the caches get."""

from __future__ import annotations

from typing import Any

import pytest

from trtspec import LLM
from trtspec.backends.device import free_memory
from trtspec.errors import EngineError
from trtspec.llmapi import resources

from .. import inside
from ..e2e.helpers import TinyModels, chain, ngram, open_llm

LIMITS = {"max_batch_size": 3, "max_seq_len": 100, "tokens_per_block": 8}
TOKEN_BYTES = 2 * 2 * 2 * 16 * 4  # K and V of two layers, two heads of 16 float32


def blocks(llm: LLM) -> tuple[int, ...]:
    with llm:
        return tuple(cache.num_blocks for cache in inside.resources(llm).all)


def opened(models: TinyModels, speculation: Any = None, **kv: Any) -> LLM:
    return open_llm(models.folder("llama"), speculation, kv_cache_config=kv, **LIMITS)


def test_a_full_batch_of_the_longest_requests(models: TinyModels) -> None:
    """13 blocks of 8 hold 100 tokens; drafts come on top, per request."""
    assert blocks(opened(models)) == (3 * 13 + 1,)
    assert blocks(opened(models, ngram(9))) == (40 + 3 * 2,)
    # A chain of 9 verifies 9 nodes and writes 8 rows of its own.
    assert blocks(opened(models, chain(models.draft("llama"), 9))) == (40 + 3 * 2, 40 + 3 * 1)


def test_a_number_of_tokens(models: TinyModels) -> None:
    """At most that many, drafts included."""
    assert blocks(opened(models, max_tokens=64)) == (8,)
    assert blocks(opened(models, max_tokens=71)) == (8,)
    assert blocks(opened(models, chain(models.draft("llama"), 9), max_tokens=72)) == (9, 9)
    assert blocks(opened(models, max_tokens=10**9)) == (40,)


def test_a_share_of_the_free_memory(models: TinyModels, monkeypatch: pytest.MonkeyPatch) -> None:
    """One budget for both caches."""
    monkeypatch.setattr(resources, "free_memory", lambda device: 200 * TOKEN_BYTES)
    assert blocks(opened(models)) == (100 // 8,)
    assert blocks(opened(models, free_memory_fraction=0.25)) == (50 // 8,)
    assert blocks(opened(models, free_memory_fraction=0.25, max_tokens=24)) == (3,)
    draft = chain(models.draft("llama"), 1)
    target_blocks, draft_blocks = blocks(opened(models, draft))
    assert target_blocks == 50 // 8 + 3 and draft_blocks == 50 // 8
    with pytest.raises(EngineError, match=r"would hold 2 tokens, less than one block of 8"):
        opened(models, free_memory_fraction=0.01)


def test_free_memory_counts_what_the_kernel_can_drop() -> None:
    with open("/proc/meminfo") as file:
        fields = dict(line.split(":") for line in file)
    free = int(fields["MemFree"].split()[0]) * 1024
    total = int(fields["MemTotal"].split()[0]) * 1024
    assert 0.5 * free < free_memory("cpu") < total
