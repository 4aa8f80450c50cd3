"""KvCacheConfig: how much memory the KV caches take, and whether prefixes are shared."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from trtspec.config.strict import Foreign, from_dict, strict_config
from trtspec.errors import ConfigError

DEFAULT_FREE_MEMORY_FRACTION = 0.5
DEFAULT_SNAPSHOT_BLOCKS = 16

CacheDtype: TypeAlias = Literal["int8", "bfloat16", "float16"]
"""Formats of caches other than the engine's dtype: 8-bit values with a scale for each token and
head; or floats, which attention then rounds its queries to as well."""
EIGHT_BITS: CacheDtype = "int8"
AUTO = "auto"
_CACHE_DTYPES = {
    **{name: name for name in (AUTO, EIGHT_BITS)},
    "q8_0": EIGHT_BITS,  # llama.cpp
    "int8_per_token_head": EIGHT_BITS,  # vLLM
    **dict.fromkeys(("bfloat16", "bf16"), "bfloat16"),
    **dict.fromkeys(("float16", "f16"), "float16"),
}


def cache_dtype(name: str) -> str:
    """The dtype of K/V caches from any of its spellings: auto (the engine's), or a `CacheDtype`.

    Raises:
        ConfigError: no attention kernel reads such caches.
    """
    plain = name.removeprefix("torch.").lower()
    if plain in _CACHE_DTYPES:
        return _CACHE_DTYPES[plain]
    known = ", ".join(_CACHE_DTYPES)
    if plain.startswith("fp8"):
        raise ConfigError(
            f"kv_cache_dtype {name!r}: no attention reads K/V of 8-bit floats, neither on CPUs nor "
            f"on CUDA; use {EIGHT_BITS} (supported: {known})"
        )
    raise ConfigError(f"kv_cache_dtype {name!r} is not supported (supported: {known})")


@strict_config(
    aliases={
        "free_gpu_memory_fraction": "free_memory_fraction",
        "kv_cache_free_gpu_mem_fraction": "free_memory_fraction",
        "gpu_memory_utilization": "memory_fraction",
        "mem_fraction_static": "memory_fraction",
        "enable_prefix_caching": "enable_block_reuse",
    },
    foreign={
        "max_attention_window": Foreign("the model's own sliding window is used", (None,)),
        "sink_token_length": Foreign("attention sinks are not offered", (None, 0)),
        "host_cache_size": Foreign("there is one level of cache", (None, 0)),
        "secondary_offload_min_priority": Foreign("there is one level of cache", (None,)),
        "onboard_blocks": Foreign("there is one level of cache", (None, True)),
        "cross_kv_cache_fraction": Foreign("there is no cross attention", (None,)),
        "event_buffer_max_size": Foreign("cache events are not reported", (None, 0)),
        "enable_partial_reuse": Foreign("whole blocks are reused; give False"),
        "copy_on_partial_reuse": Foreign("whole blocks are reused; give False"),
        "use_uvm": Foreign("unified memory is not offered"),
        "tokens_per_block": Foreign("it is an option of the build (BuildConfig, LLM)", (None,)),
    },
    none_means_default=True,
)
@dataclass(frozen=True)
class KvCacheConfig:
    """Memory of the target's and the draft's KV caches together; ConfigError names a bad value.

    enable_block_reuse: share blocks of equal prefixes between requests. max_tokens: most tokens in
    the caches, over all requests; None: what free_memory_fraction of the memory that is free after
    loading the weights holds, but no more than max_batch_size requests of max_seq_len tokens can
    use. With both, the smaller one applies. memory_fraction: instead of free_memory_fraction, the
    share of the device's whole memory that may be in use once the caches are allocated, whatever
    uses it (vLLM's gpu_memory_utilization). snapshot_blocks: for models with recurrent states, the
    number of blocks between two snapshots of the state in a prefix. A prefix is reused up to its
    last snapshot: closer snapshots save recomputation, but each takes the memory of a state, at the
    expense of cached tokens, and prompt chunks end at snapshots. dtype: of the target's K/V: auto
    (the engine's dtype, but float16 where that is float32 around quantised weights), bfloat16,
    float16 or int8 (also q8_0), with a scale for each token and head. It is fixed when an engine is
    built.
    """

    enable_block_reuse: bool = True
    max_tokens: int | None = None
    free_memory_fraction: float = DEFAULT_FREE_MEMORY_FRACTION
    memory_fraction: float | None = None
    snapshot_blocks: int = DEFAULT_SNAPSHOT_BLOCKS
    dtype: str = AUTO

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", cache_dtype(self.dtype))
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ConfigError(f"kv cache max_tokens={self.max_tokens} must be at least 1")
        if self.snapshot_blocks < 1:
            raise ConfigError(
                f"kv cache snapshot_blocks={self.snapshot_blocks} must be at least 1; without "
                "snapshots no prefix is found again, which enable_block_reuse=False says"
            )
        for name in ("free_memory_fraction", "memory_fraction"):
            fraction = getattr(self, name)
            if fraction is not None and not (math.isfinite(fraction) and 0.0 < fraction <= 1.0):
                raise ConfigError(f"kv cache {name}={fraction!r} must be above 0 and at most 1")
        is_left = self.free_memory_fraction == DEFAULT_FREE_MEMORY_FRACTION
        if self.memory_fraction is not None and not is_left:
            raise ConfigError(
                f"kv cache memory_fraction={self.memory_fraction} (gpu_memory_utilization) and "
                f"free_memory_fraction={self.free_memory_fraction} both say how much memory the "
                "caches take; give one of them"
            )

    def budget(self, free: int, total: int) -> int:
        """Bytes for the caches, given a device's free and total memory; 0 or less: none."""
        if self.memory_fraction is None:
            return int(free * self.free_memory_fraction)
        return int(total * self.memory_fraction) - (total - free)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> KvCacheConfig:
        return from_dict(cls, data)


@dataclass(frozen=True)
class CacheLayout:
    """The fixed sizes of an engine's inputs: cache blocks, block tables and mask words.

    is_slots: every sequence has a single block, its slot, which holds all its rows plus the width
    of a padded step.
    """

    tokens_per_block: int
    blocks_per_sequence: int
    mask_words: int
    is_slots: bool = False
