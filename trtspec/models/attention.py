"""Self-attention, what describes the packed rows of one call over a paged cache, and slots."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from trtspec.config.attention_spec import AttentionSpec
from trtspec.config.layer_tensors import qk_norm_shape
from trtspec.formats.network_formats import NetworkFormats
from trtspec.formats.registry import IN_PANELS
from trtspec.models.linear import Linear
from trtspec.models.norm import Norm, UnweightedRMSNorm, make_norm
from trtspec.models.rope import Rotation, rotate
from trtspec.ops.attention import paged_tree_attention
from trtspec.ops.latent_attention import latent_tree_attention


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
    """Where the T rows of a call stand, and how they attend. This is what differs between kinds of
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
        k_cache: Tensor,
        v_cache: Tensor,
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
        k_cache: Tensor,
        v_cache: Tensor,
        scale: float,
    ) -> Tensor:
        """Rotate ``q_rope [T, H, P]`` and ``key [T, P]``, write the key and ``latent [T, R]`` into
        the caches of a layer, v and k, and attend with ``q_latent [T, H, R]`` beside the rotated
        queries: sums of latents ``[T, H, R]`` (see `latent_tree_attention`)."""
        ...

    def read(
        self,
        q: Tensor,
        rotation: Rotation | None,
        k_cache: Tensor,
        v_cache: Tensor,
        scoring: Scoring,
    ) -> Tensor:
        """Rotate ``q [T, Hq, D]`` and attend to what an earlier layer of the call wrote of these
        rows, and what lay there before, in its cache: ``[T, Hq, D]``."""
        ...

    def write(
        self,
        k: Tensor,
        v: Tensor,
        rotation: Rotation | None,
        k_cache: Tensor,
        v_cache: Tensor,
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
        k_cache: Tensor,
        v_cache: Tensor,
        scoring: Scoring,
    ) -> Tensor:
        """See `Rows.attend`; the caches are written in place."""
        q, k = rotate(q, rotation), rotate(k, rotation)
        return paged_tree_attention(q, k, v, k_cache, v_cache, *self, *scoring)

    def attend_latents(
        self,
        q_latent: Tensor,
        q_rope: Tensor,
        latent: Tensor,
        key: Tensor,
        rotation: Rotation,
        k_cache: Tensor,
        v_cache: Tensor,
        scale: float,
    ) -> Tensor:
        """See `Rows.attend_latents`; the caches are written in place."""
        q_rope, key = rotate(q_rope, rotation), rotate(key.unsqueeze(1), rotation).squeeze(1)
        caches, seen = (k_cache, v_cache), self[1:]
        return latent_tree_attention(q_latent, q_rope, latent, key, *caches, *seen, scale)

    def read(
        self,
        q: Tensor,
        rotation: Rotation | None,
        k_cache: Tensor,
        v_cache: Tensor,
        scoring: Scoring,
    ) -> Tensor:
        """See `Rows.read`."""
        none = q.new_empty(0, *k_cache.shape[2:])
        return paged_tree_attention(
            rotate(q, rotation), none, none, k_cache, v_cache, *self, *scoring
        )

    def write(
        self,
        k: Tensor,
        v: Tensor,
        rotation: Rotation | None,
        k_cache: Tensor,
        v_cache: Tensor,
    ) -> None:
        """See `Rows.write`."""
        k, blind = rotate(k, rotation), self.unseeing()
        paged_tree_attention(torch.zeros_like(k), k, v, k_cache, v_cache, *blind, *Scoring(1.0))

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


def flat_slots(block_tables: Tensor, positions: Tensor, tokens_per_block: int) -> Tensor:
    """Slots ``[B, width] i64`` of cache positions ``[B, width] i64``, through ``block_tables
    [B, M] i32``; -1 where the request holds no block."""
    column = positions // tokens_per_block
    inside = column < block_tables.shape[1]
    block = block_tables.gather(1, column.clamp(max=block_tables.shape[1] - 1)).long()
    slot = block * tokens_per_block + positions % tokens_per_block
    return torch.where(inside & (block >= 0), slot, -1)


def make_qk_norms(spec: AttentionSpec, dtype: torch.dtype) -> tuple[Norm | None, Norm | None]:
    """The norms of queries and of keys, where the layer has them: of `qk_norm_shape`."""
    if spec.qk_norm is None:
        return None, None
    shapes = (qk_norm_shape(spec, heads) for heads in (spec.num_heads, spec.num_kv_heads))
    queries, keys = (make_norm(spec.qk_norm, shape, dtype) for shape in shapes)
    return queries, keys if spec.kv_from is None else None


def norm_heads(x: Tensor, norm: Norm | None) -> Tensor:
    """Heads ``x [T, heads, D]`` under a norm of ``D``, of ``[heads, D]`` or of ``heads * D``
    elements."""
    if norm is None:
        return x
    if norm.weight.shape[-1] == x.shape[-1]:
        normed: Tensor = norm(x)
        return normed
    over_all: Tensor = norm(x.flatten(1))
    return over_all.view(x.shape)


class Attention(nn.Module):
    """Grouped-query attention of one layer: q, k and v fused, optional norms of each, rotary. There
    is no v where the keys are the values too, and q alone where K and V are an earlier layer's. It
    may have ``sinks [heads] f32``.

    ``in_features`` is the width that q, k and v read, the ``hidden`` size unless given; ``formats``
    are those of its own weights.
    """

    sinks: Tensor | None

    def __init__(
        self,
        spec: AttentionSpec,
        hidden: int,
        dtype: torch.dtype,
        in_features: int | None = None,
        *,
        formats: NetworkFormats = IN_PANELS,
    ) -> None:
        super().__init__()
        self.num_heads = spec.num_heads
        self.num_kv_heads = spec.num_kv_heads
        self.head_dim = spec.head_dim
        self.scoring = Scoring.of(spec)
        self.parts = "q" if spec.kv_from is not None else "qk" if spec.values_are_keys else "qkv"
        q_size, kv_size = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        sizes = {part: q_size if part == "q" else kv_size for part in self.parts}
        width, joined = in_features or hidden, formats.of(sizes)
        read = Linear(width, sum(sizes.values()), dtype, spec.bias, format=joined)
        self.add_module(self.parts, read)
        o = formats.of({"o": hidden})
        self.o = Linear(q_size, hidden, dtype, spec.output_bias, format=o)
        self.q_norm, self.k_norm = make_qk_norms(spec, dtype)
        self.v_norm = UnweightedRMSNorm(spec.v_norm.eps) if spec.v_norm is not None else None
        sinks = torch.empty(spec.num_heads, dtype=torch.float32) if spec.sinks else None
        self.register_buffer("sinks", sinks)

    def forward(
        self,
        x: Tensor,
        rows: Rows,
        rotation: Rotation | None,
        k_cache: Tensor,
        v_cache: Tensor,
        *,
        norm: Norm | None,
        residual: Tensor | None,
        kept: Tensor | None = None,
    ) -> Tensor:
        """The attention of ``norm(x) [T, in_features]``, with the sum of ``residual [T, hidden]``
        if one is given; if ``kept [R] i64`` is, of these rows alone. Writes K and V of all rows
        into the caches."""
        read = self.get_submodule(self.parts)
        heads = read(x, norm=norm).view(x.shape[0], -1, self.head_dim)
        attended = self._attend(heads, rows, rotation, k_cache, v_cache).flatten(1)
        if kept is not None:
            attended = attended[kept]
            residual = None if residual is None else residual[kept]
        out: Tensor = self.o(attended, residual=residual)
        return out

    def _attend(
        self,
        heads: Tensor,
        rows: Rows,
        rotation: Rotation | None,
        k_cache: Tensor,
        v_cache: Tensor,
    ) -> Tensor:
        counts = [self.num_heads, *[self.num_kv_heads] * (len(self.parts) - 1)]
        q, *kv = torch.split(heads, counts, dim=1)
        q, scoring = norm_heads(q, self.q_norm), self.scoring._replace(sinks=self.sinks)
        if not kv:
            return rows.read(q, rotation, k_cache, v_cache, scoring)
        k, v = norm_heads(kv[0], self.k_norm), kv[-1]
        if self.v_norm is not None:
            v = self.v_norm(v)
        return rows.attend(q, k, v, rotation, k_cache, v_cache, scoring)
