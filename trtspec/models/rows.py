"""The packed rows of one call over a paged cache, how they attend, and slots."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from trtspec.config.mixers.attention import AttentionSpec
from trtspec.models.rope import Rotation, rotate
from trtspec.ops.attention import paged_tree_attention
from trtspec.ops.latent_attention import latent_tree_attention
from trtspec.ops.quantised_cache import latent_tree_attention_8bit, paged_tree_attention_8bit

Cache: TypeAlias = tuple[Tensor, ...]
"""The buffers of one layer, in the order of `MixerSpec.buffers`: keys and values for attention,
latents and rotated keys for latent attention."""
Caches: TypeAlias = list[Cache]
"""The buffers of each of `decoder_caches`."""


class Scoring(NamedTuple):
    """How a layer's queries and keys become weights; see `paged_tree_attention` for each field."""

    scale: float
    sliding_window: int = 0
    soft_cap: float = 0.0
    sinks: Tensor | None = None

    @classmethod
    def of(cls, spec: AttentionSpec) -> Scoring:
        """That of a spec."""
        scale = spec.head_dim**-0.5 if spec.scale is None else spec.scale
        return cls(scale, spec.window, spec.soft_cap or 0.0)


class Rows(Protocol):
    """Where the T rows of a call are, and how they attend. This is what differs between kinds of
    caches."""

    @property
    def positions(self) -> Tensor:
        """The position of each row in its sequence, for the rotary embedding ``[T] i64``."""
        ...

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rotation: Rotation | None,
        cache: Cache,
        scoring: Scoring,
    ) -> Tensor:
        """Rotate ``q [T, Hq, D]`` and ``k [T, Hkv, D]``, write k and ``v [T, Hkv, D]`` into the
        cache of a layer, and attend: ``[T, Hq, D]``."""
        ...

    def attend_latents(
        self,
        q_latent: Tensor,
        q_rope: Tensor,
        latent: Tensor,
        key: Tensor,
        rotation: Rotation,
        cache: Cache,
        scale: float,
    ) -> Tensor:
        """Rotate ``q_rope [T, H, P]`` and ``key [T, P]``, write ``latent [T, R]`` and the key into
        the cache of a layer, and attend with ``q_latent [T, H, R]`` beside the rotated
        queries: sums of latents ``[T, H, R]`` (see `latent_tree_attention`)."""
        ...

    def read(
        self,
        q: Tensor,
        rotation: Rotation | None,
        cache: Cache,
        scoring: Scoring,
    ) -> Tensor:
        """Rotate ``q [T, Hq, D]`` and attend to an earlier layer's cache, including what that layer
        wrote for these rows: ``[T, Hq, D]``."""
        ...

    def write(
        self,
        k: Tensor,
        v: Tensor,
        rotation: Rotation | None,
        cache: Cache,
    ) -> None:
        """Rotate ``k [T, Hkv, D]`` and write it and ``v [T, Hkv, D]`` into the cache of a layer."""
        ...


class PackedRows(NamedTuple):
    """The rows of B requests over a paged cache; see `paged_tree_attention` for each field."""

    positions: Tensor
    slot_mapping: Tensor
    block_tables: Tensor
    query_start: Tensor
    context_lens: Tensor
    is_tree: Tensor
    tree_mask: Tensor

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rotation: Rotation | None,
        cache: Cache,
        scoring: Scoring,
    ) -> Tensor:
        """See `Rows.attend`; the caches are written in place."""
        q, k = rotate(q, rotation), rotate(k, rotation)
        return attend(q, k, v, cache, self, scoring)

    def attend_latents(
        self,
        q_latent: Tensor,
        q_rope: Tensor,
        latent: Tensor,
        key: Tensor,
        rotation: Rotation,
        cache: Cache,
        scale: float,
    ) -> Tensor:
        """See `Rows.attend_latents`; the caches are written in place."""
        q_rope, key = rotate(q_rope, rotation), rotate(key.unsqueeze(1), rotation).squeeze(1)
        op = _reader(cache, latent_tree_attention, latent_tree_attention_8bit)
        kept = _as_kept(cache, q_latent, q_rope, latent, key)
        return op(*kept, *cache, *self[1:], scale).to(q_latent.dtype)

    def read(
        self,
        q: Tensor,
        rotation: Rotation | None,
        cache: Cache,
        scoring: Scoring,
    ) -> Tensor:
        """See `Rows.read`."""
        none = q.new_empty(0, *cache[0].shape[2:])
        return attend(rotate(q, rotation), none, none, cache, self, scoring)

    def write(
        self,
        k: Tensor,
        v: Tensor,
        rotation: Rotation | None,
        cache: Cache,
    ) -> None:
        """See `Rows.write`."""
        k, blind = rotate(k, rotation), self.unseeing()
        attend(torch.zeros_like(k), k, v, cache, blind, Scoring(1.0))

    def unseeing(self) -> PackedRows:
        """The same rows, but none sees anything: their K/V is written, and attention costs
        nothing."""
        blind = self._replace(context_lens=torch.zeros_like(self.context_lens))
        return blind.committed_only()

    def committed_only(self) -> PackedRows:
        """The same rows, but they see neither themselves nor each other."""
        return self._replace(
            is_tree=torch.ones_like(self.is_tree), tree_mask=torch.zeros_like(self.tree_mask)
        )


def rows_behind(rows: PackedRows, last_rows: Tensor) -> Tensor:
    """The cache position after each request's row ``last_rows [B] i64``: ``[B] i64``. It is the
    row's position plus one, unless the cache has released rows; 0 for padding."""
    own = last_rows - rows.query_start[:-1] + 1
    return (rows.context_lens + own).clamp(min=0)


def attend(
    q: Tensor, k: Tensor, v: Tensor, cache: Cache, rows: PackedRows, scoring: Scoring
) -> Tensor:
    """`paged_tree_attention` of a layer over its cache, in the dtype that this has."""
    op = _reader(cache, paged_tree_attention, paged_tree_attention_8bit)
    return op(*_as_kept(cache, q, k, v), *cache, *rows, *scoring).to(q.dtype)


def _as_kept(cache: Cache, *given: Tensor) -> list[Tensor]:
    """Rows in the float dtype that a cache keeps; the ops quantise to 8 bits themselves."""
    dtype = cache[0].dtype
    return [each.to(dtype) if dtype.is_floating_point else each for each in given]


def _reader(
    cache: Cache, plain: Callable[..., Tensor], of_8_bits: Callable[..., Tensor]
) -> Callable[..., Tensor]:
    """The op that reads a cache: an 8-bit one has two buffers of scales after its own two."""
    return plain if len(cache) == 2 else of_8_bits


def flat_slots(block_tables: Tensor, positions: Tensor, tokens_per_block: int) -> Tensor:
    """Slots ``[B, width] i64`` of cache positions ``[B, width] i64``, through ``block_tables
    [B, M] i32``; -1 where the request holds no block."""
    column = positions // tokens_per_block
    inside = column < block_tables.shape[1]
    block = block_tables.gather(1, column.clamp(max=block_tables.shape[1] - 1)).long()
    slot = block * tokens_per_block + positions % tokens_per_block
    return torch.where(inside & (block >= 0), slot, -1)
