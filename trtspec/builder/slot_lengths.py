"""The sequence length of engines in which each sequence has a cache slot of its own.

A slot has room for all of `max_seq_len` from the start. A single slot for a model with 128k tokens
would take the memory of a large GPU, so the default depends on the available memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.config.build_config import BuildConfig
from trtspec.config.kv import DEFAULT_FREE_MEMORY_FRACTION
from trtspec.config.model import ModelConfig
from trtspec.engine.memory import kv_bytes_per_token, weight_bytes
from trtspec.engine.weight_formats import target_formats
from trtspec.errors import ConfigError

ASSUMED_MEMORY = 24 << 30
"""Bytes of memory assumed for a GPU that is not present."""
_SHORTEST = 256
_GIB = 1 << 30


@dataclass(frozen=True)
class SlotLengths:
    """The slots of a target.

    memory: bytes of the device that the engine will run on; None: unknown. free: bytes that the
    weights leave. token_bytes: the target's K/V per token. slack: positions of a slot after a
    sequence's tokens. K/V of drafts is ignored: it is small compared to the target's, and caches do
    not get all of the free memory.
    """

    memory: int | None
    free: int
    token_bytes: int
    slack: int

    @classmethod
    def of(
        cls, model: ModelConfig, build: BuildConfig, memory: int | None, rows: int
    ) -> SlotLengths:
        """``build``: with backend, device and dtypes resolved. ``rows``: those of a verify step."""
        weights = weight_bytes(model, target_formats(model, build), build)
        free = (ASSUMED_MEMORY if memory is None else memory) - weights
        return cls(memory, free, kv_bytes_per_token(model, build.dtype), 2 * rows)

    def default(self, limit: int, slots: int) -> tuple[int, str | None]:
        """The model's limit and None. If that many ``slots`` of that length exceed the share of
        memory for caches: the largest power of two that fits, and the reason."""
        room = int(max(self.free, 0) * DEFAULT_FREE_MEMORY_FRACTION)
        longest = room // (slots * self.token_bytes) - self.slack
        if longest >= limit:
            return limit, None
        length = min(max(_SHORTEST, 1 << max(longest, 1).bit_length() - 1), limit)
        assumed = "" if self.memory is not None else f" of a GPU of {ASSUMED_MEMORY // _GIB} GiB"
        return length, (
            f"max_seq_len {length}: {slots} slots of the model's {limit} tokens take "
            f"{slots * self._slot_bytes(limit) / _GIB:.1f} GiB of K/V, caches get "
            f"{room / _GIB:.1f} GiB{assumed}"
        )

    def check(self, max_seq_len: int) -> None:
        """Raise ConfigError if not even one slot of that length fits beside the weights."""
        needed = self._slot_bytes(max_seq_len)
        if self.memory is not None and needed > self.free:
            raise ConfigError(
                f"max_seq_len={max_seq_len} takes {needed / _GIB:.1f} GiB of K/V for one sequence, "
                f"the weights leave {max(self.free, 0) / _GIB:.1f} GiB of the device's "
                f"{self.memory / _GIB:.1f} GiB; lower max_seq_len, or use a backend with a paged "
                "cache"
            )

    def _slot_bytes(self, tokens: int) -> int:
        return (tokens + self.slack) * self.token_bytes
