"""KVTensors: the memory of one model's caches, paged or slots."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trtspec.config.kv import CacheLayout
from trtspec.config.model import ModelConfig
from trtspec.models.causal_lm import new_kv_caches
from trtspec.ops.kv_compact import kv_compact

COMPACTED_AT_ONCE = 4096
"""Rows that one call of `kv_compact` is asked to move; on CUDA it has a limit."""


class KVTensors:
    """One K and one V tensor a layer, zeroed: ``[num_blocks, block_size, Hkv, D]``, or in a slot
    layout, whose blocks are slots, ``[slots, Hkv, length, D]``.

    A slot cache is one of slots * Hkv blocks with one head each: rows are moved head by head.
    """

    def __init__(
        self,
        config: ModelConfig,
        dtype: torch.dtype,
        layout: CacheLayout,
        num_blocks: int,
        device: torch.device,
    ) -> None:
        self._block_size = layout.tokens_per_block
        self._heads = config.num_kv_heads if layout.is_slots else 1
        k, v = new_kv_caches(config, num_blocks, layout.tokens_per_block, dtype, device)
        self._k, self._v = k, v
        if layout.is_slots:
            shape = (num_blocks, config.num_kv_heads, layout.tokens_per_block, config.head_dim)
            self._k, self._v = ([cache.view(shape) for cache in caches] for caches in (k, v))

    @property
    def all(self) -> tuple[Tensor, ...]:
        """Keys of every layer, then values."""
        return (*self._k, *self._v)

    def compact(self, source: Tensor, wanted: Tensor) -> None:
        """Move the rows in slots ``source`` to slots ``wanted``, int64, in every cache.

        Rows of a request move towards its first, in the order of their positions: so no row is
        written that a later pair reads, and many pairs may go in several calls.
        """
        k, v = self._k, self._v
        if self._heads > 1 or k[0].shape[1] != self._block_size:
            k, v = self._by_head(k), self._by_head(v)
            source, wanted = self._rows_of_heads(source), self._rows_of_heads(wanted)
        for begin in range(0, len(source), COMPACTED_AT_ONCE):
            part = slice(begin, begin + COMPACTED_AT_ONCE)
            kv_compact(k, v, source[part], wanted[part])

    def _by_head(self, caches: Sequence[Tensor]) -> list[Tensor]:
        return [cache.view(-1, self._block_size, 1, cache.shape[-1]) for cache in caches]

    def _rows_of_heads(self, slots: Tensor) -> Tensor:
        """Of each row, the rows of its heads, in the order of the rows ``[n * Hkv]``."""
        block, offset = slots // self._block_size, slots % self._block_size
        heads = torch.arange(self._heads, device=slots.device)
        of_heads = (block[:, None] * self._heads + heads) * self._block_size + offset[:, None]
        return of_heads.flatten()
