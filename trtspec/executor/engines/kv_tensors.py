"""KVTensors: the memory of one model's caches, paged or slots, and of its recurrent states."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from trtspec.config.cache_buffer import BufferKind
from trtspec.config.kv import CacheLayout
from trtspec.config.model import ModelConfig
from trtspec.models.causal_lm import new_caches, new_slot_caches
from trtspec.models.layer_facts import decoder_caches
from trtspec.models.rows import Caches
from trtspec.ops.kv_compact import kv_compact

COMPACTED_AT_ONCE = 4096
"""Rows that one call of `kv_compact` moves; on CUDA it has a limit."""


class KVTensors:
    """The buffers of each of `decoder_caches`, zeroed: ``[num_blocks, block_size, heads, size]``,
    or in a slot layout, whose blocks are slots, ``[slots, heads, length, size]``.

    all: the buffers, cache by cache; among them states ``[num_states, heads, size]`` and a call's
    step rows ``[num_rows, heads, size]``, if the model has such (see `CacheBuffer`); the last state
    is for padding. caches, kinds: as given. bytes_per_token: of the paged buffers. bytes_per_state:
    of a request's states.

    A slot cache equals one with slots * heads blocks of one head each: rows are moved head by head.
    """

    def __init__(
        self,
        caches: Caches,
        kinds: Sequence[Sequence[BufferKind]],
        dtype: torch.dtype,
        layout: CacheLayout,
    ) -> None:
        """``kinds``: of the buffers of each cache."""
        self.dtype = dtype
        self.layout = layout
        self.all: tuple[Tensor, ...] = tuple(chain(*caches))
        self.device = self.all[0].device
        of = {"paged": list[Tensor](), "slot": list[Tensor](), "step": list[Tensor]()}
        for buffer, kind in zip(self.all, chain(*kinds), strict=True):
            of[kind].append(buffer)
        heads = 1 if layout.is_slots else 2
        self.bytes_per_token = sum(
            buffer.shape[heads] * buffer.shape[3] * buffer.dtype.itemsize for buffer in of["paged"]
        )
        self.bytes_per_state = sum(buffer[0].nbytes for buffer in of["slot"])
        self._states = of["slot"]
        self.caches = caches
        self.kinds = kinds
        self._block_size = layout.tokens_per_block
        self._groups = _alike(of["paged"], layout.is_slots)

    @classmethod
    def new(
        cls,
        config: ModelConfig,
        dtype: torch.dtype,
        layout: CacheLayout,
        num_blocks: int,
        device: torch.device,
        *,
        num_states: int = 0,
        num_rows: int = 0,
    ) -> KVTensors:
        """Allocate those of a model."""
        kinds = [[buffer.kind for buffer in buffers] for buffers in decoder_caches(config)]
        sizes = config, num_blocks, layout.tokens_per_block, dtype, device
        if layout.is_slots:
            return cls(new_slot_caches(*sizes), kinds, dtype, layout)
        caches = new_caches(*sizes, num_states=num_states, num_rows=num_rows)
        return cls(caches, kinds, dtype, layout)

    def part(self, places: Sequence[int]) -> KVTensors:
        """The same memory for some of the caches, in that order, to be read by another network."""
        caches, kinds = [self.caches[i] for i in places], [self.kinds[i] for i in places]
        return KVTensors(caches, kinds, self.dtype, self.layout)

    @property
    def state_places(self) -> list[int]:
        """Indices in ``all`` of the states."""
        kinds = chain(*self.kinds)
        return [place for place, kind in enumerate(kinds) if kind == "slot"]

    @property
    def keeps_states(self) -> bool:
        return bool(self._states)

    @property
    def num_states(self) -> int:
        """Slots of states."""
        return len(self._states[0]) if self._states else 0

    @property
    def spare_state(self) -> int:
        """The slot that no request has."""
        return self.num_states - 1

    def release(self) -> None:
        """Drop the memory, unless it is shared."""
        self.all, self.caches, self._groups, self._states = (), [], {}, []

    def copy_states(self, source: Tensor, wanted: Tensor) -> None:
        """Copy states from slots ``source`` to slots ``wanted``, int64; no slot is in both."""
        for buffer in self._states:
            buffer[wanted] = buffer[source]

    def compact(self, source: Tensor, wanted: Tensor) -> None:
        """Move rows from slots ``source`` to slots ``wanted``, int64, in every paged buffer.

        A request's rows move towards its first, in order of position, so no row is overwritten
        before a later pair reads it, and many pairs may be split into several calls.
        """
        for heads, buffers in self._groups.items():
            of_heads = [self._rows_of_heads(slots, heads) for slots in (source, wanted)]
            for begin in range(0, len(of_heads[0]), COMPACTED_AT_ONCE):
                part = slice(begin, begin + COMPACTED_AT_ONCE)
                kv_compact(buffers, *(slots[part] for slots in of_heads))

    def _rows_of_heads(self, slots: Tensor, count: int) -> Tensor:
        """For each row, the rows of its heads, in the order of rows ``[n * count]``."""
        if count == 1:
            return slots
        block, offset = slots // self._block_size, slots % self._block_size
        heads = torch.arange(count, device=slots.device)
        of_heads = (block[:, None] * count + heads) * self._block_size + offset[:, None]
        return of_heads.flatten()


def _alike(buffers: Sequence[Tensor], is_slots: bool) -> dict[int, list[Tensor]]:
    """The buffers as they are compacted, in blocks ``[n, block_size, h, size]``, with the number of
    blocks that each original block makes; buffers of one shape are adjacent, as they move together.
    """
    found: dict[int, list[Tensor]] = {}
    for buffer in sorted(buffers, key=lambda each: (each.shape, each.dtype.itemsize)):
        heads = buffer.shape[1] if is_slots else 1
        blocks = buffer.view(-1, buffer.shape[2], 1, buffer.shape[3]) if is_slots else buffer
        found.setdefault(heads, []).append(blocks)
    return found
