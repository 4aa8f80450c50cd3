"""KvCacheConfig: how much memory the KV caches take and whether prefixes are shared."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtspec.config.strict import Foreign, from_dict, strict_config
from trtspec.errors import ConfigError

DEFAULT_FREE_MEMORY_FRACTION = 0.5


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
        "dtype": Foreign("the cache has the engine's dtype", (None, "auto")),
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
    """Memory of the target's and the draft's KV cache together; ConfigError names a bad value.

    enable_block_reuse: share the blocks of equal prefixes between requests.
    max_tokens: tokens that the caches hold at most, over all requests; None: as many as
    free_memory_fraction of the memory that is free after loading the weights takes, and never more
    than max_batch_size requests of max_seq_len tokens can use. With both, the smaller one counts.
    memory_fraction: in place of free_memory_fraction, the part of the device's whole memory that
    may be full once the caches are there, whatever fills it (vLLM's gpu_memory_utilization).
    """

    enable_block_reuse: bool = True
    max_tokens: int | None = None
    free_memory_fraction: float = DEFAULT_FREE_MEMORY_FRACTION
    memory_fraction: float | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ConfigError(f"kv cache max_tokens={self.max_tokens} must be at least 1")
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
        """Bytes for the caches on a device with so many free and in all; 0 or less: none."""
        if self.memory_fraction is None:
            return int(free * self.free_memory_fraction)
        return int(total * self.memory_fraction) - (total - free)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> KvCacheConfig:
        return from_dict(cls, data)


@dataclass(frozen=True)
class CacheLayout:
    """The fixed sizes of an engine's inputs: cache blocks, block tables and mask words.

    is_slots: every sequence has one block, its slot, which holds all its rows and, behind those,
    as many as a padded step may be wide.
    """

    tokens_per_block: int
    blocks_per_sequence: int
    mask_words: int
    is_slots: bool = False
