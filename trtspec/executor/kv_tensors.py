"""KVTensors: the memory of one model's caches, paged or slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trtspec.config.kv import CacheLayout
from trtspec.config.model import ModelConfig
from trtspec.models.causal_lm import new_kv_caches
from trtspec.ops.kv_compact import kv_compact

COMPACTED_AT_ONCE = 4096
"""Rows that one call of `kv_compact` is asked to move; on CUDA it has a limit."""


class KVTensors:
    """One K and one V tensor for each of `decoder_caches`, zeroed: ``[num_blocks, block_size, Hkv,
    D]``, or in a slot layout, whose blocks are slots, ``[slots, Hkv, length, D]``. Hkv and D are
    each one's own, and V may have a D of its own.

    all: keys of every one, then values. bytes_per_token: of K and V, over all layers.

    A slot cache is one of slots * Hkv blocks with one head each: rows are moved head by head.
    """

    def __init__(self, k: Sequence[Tensor], v: Sequence[Tensor], layout: CacheLayout) -> None:
        self.dtype = k[0].dtype
        self.device = k[0].device
        self.layout = layout
        self.all = (*k, *v)
        self.bytes_per_token = sum(_bytes_of_row(cache, layout.is_slots) for cache in self.all)
        self._block_size = layout.tokens_per_block
        self._groups = _alike(k, v, layout.is_slots)

    @classmethod
    def new(
        cls,
        config: ModelConfig,
        dtype: torch.dtype,
        layout: CacheLayout,
        num_blocks: int,
        device: torch.device,
    ) -> KVTensors:
        """Those of a model."""
        k, v = new_kv_caches(config, num_blocks, layout.tokens_per_block, dtype, device)
        if layout.is_slots:
            k, v = ([_heads_first(cache) for cache in caches] for caches in (k, v))
        return cls(k, v, layout)

    def part(self, places: Sequence[int]) -> KVTensors:
        """The same memory of some of the caches, in that order, for another network to read."""
        count = len(self.all) // 2
        k, v = ([self.all[begin + place] for place in places] for begin in (0, count))
        return KVTensors(k, v, self.layout)

    def release(self) -> None:
        """Let go of the memory, as far as it is nobody else's."""
        self.all = ()
        self._groups = []

    def compact(self, source: Tensor, wanted: Tensor) -> None:
        """Move the rows in slots ``source`` to slots ``wanted``, int64, in every cache.

        Rows of a request move towards its first, in the order of their positions: so no row is
        written that a later pair reads, and many pairs may go in several calls.
        """
        for group in self._groups:
            of_heads = [self._rows_of_heads(slots, group.heads) for slots in (source, wanted)]
            for begin in range(0, len(of_heads[0]), COMPACTED_AT_ONCE):
                part = slice(begin, begin + COMPACTED_AT_ONCE)
                kv_compact(group.k, group.v, *(slots[part] for slots in of_heads))

    def _rows_of_heads(self, slots: Tensor, count: int) -> Tensor:
        """Of each row, the rows of its heads, in the order of the rows ``[n * count]``."""
        if count == 1:
            return slots
        block, offset = slots // self._block_size, slots % self._block_size
        heads = torch.arange(count, device=slots.device)
        of_heads = (block[:, None] * count + heads) * self._block_size + offset[:, None]
        return of_heads.flatten()


@dataclass(frozen=True)
class _Group:
    """Layers whose caches have one shape, as they are compacted: in blocks ``[n, block_size, h,
    D]``, of which ``heads`` make one of the cache's own."""

    k: list[Tensor]
    v: list[Tensor]
    heads: int = 1


def _alike(k: Sequence[Tensor], v: Sequence[Tensor], is_slots: bool) -> list[_Group]:
    layers: dict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = {}
    for pair in zip(k, v, strict=True):
        layers.setdefault((*pair[0].shape, *pair[1].shape), []).append(pair)
    groups = []
    for shape, pairs in layers.items():
        own = [
            [_in_heads(cache) if is_slots else cache for cache in part]
            for part in zip(*pairs, strict=True)
        ]
        groups.append(_Group(own[0], own[1], shape[1] if is_slots else 1))
    return groups


def _in_heads(cache: Tensor) -> Tensor:
    """``[slots, Hkv, length, D]`` as blocks of one head each."""
    return cache.view(-1, cache.shape[2], 1, cache.shape[3])


def _bytes_of_row(cache: Tensor, is_slots: bool) -> int:
    """Of one token's keys, or values."""
    heads = cache.shape[1] if is_slots else cache.shape[2]
    return heads * cache.shape[3] * cache.dtype.itemsize


def _heads_first(cache: Tensor) -> Tensor:
    """The memory of ``[slots, length, Hkv, D]`` as ``[slots, Hkv, length, D]``; it is zero."""
    slots, length, heads, size = cache.shape
    return cache.view(slots, heads, length, size)
