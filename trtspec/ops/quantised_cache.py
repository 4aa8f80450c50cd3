"""Attention over 8-bit caches: int8 values, times a float32 scale for each token and head.

A row x of a head is kept as ``round(x / scale)`` with ``scale = max |x| / 127``, rounded when it is
written. All readers see the same values, so the guarantees of `paged_tree_attention` and
`latent_tree_attention` hold: the bits of a row's result depend only on its query and on the list of
tokens that it sees, in order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trtspec.ops import native  # noqa: F401  registers the ops
from trtspec.ops.attention import paged_tree_attention_reference
from trtspec.ops.latent_attention import latent_tree_attention_reference


def paged_tree_attention_8bit(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k_scale: Tensor,
    v_scale: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    block_tables: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    is_tree: Tensor,
    tree_mask: Tensor,
    scale: float,
    sliding_window: int,
    soft_cap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """`paged_tree_attention` with ``k_cache`` and ``v_cache`` [num_blocks, block_size, Hkv, D] of
    int8, and ``k_scale`` and ``v_scale`` [num_blocks, block_size, Hkv, 1] float32. A row that is
    not finite is kept as NaN."""
    result: Tensor = torch.ops.trtspec.paged_tree_attention_8bit(
        *(q, k, v, k_cache, v_cache, k_scale, v_scale, positions, slot_mapping, block_tables),
        *(query_start, context_lens, is_tree, tree_mask, scale, sliding_window, soft_cap, sinks),
    )
    return result


def latent_tree_attention_8bit(
    q_latent: Tensor,
    q_rope: Tensor,
    latent: Tensor,
    key: Tensor,
    latent_cache: Tensor,
    key_cache: Tensor,
    latent_scale: Tensor,
    key_scale: Tensor,
    slot_mapping: Tensor,
    block_tables: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    is_tree: Tensor,
    tree_mask: Tensor,
    scale: float,
) -> Tensor:
    """`latent_tree_attention` with caches [num_blocks, block_size, 1, R] and [.., 1, P] of int8,
    and ``latent_scale`` and ``key_scale`` [num_blocks, block_size, 1, 1] float32. On CPUs."""
    result: Tensor = torch.ops.trtspec.latent_tree_attention_8bit(
        *(q_latent, q_rope, latent, key, latent_cache, key_cache, latent_scale, key_scale),
        *(slot_mapping, block_tables, query_start, context_lens, is_tree, tree_mask, scale),
    )
    return result


def rounded_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows ``[..., D]`` as stored: int8 ``[..., D]`` and scales ``[..., 1] f32``."""
    most = x.float().abs().amax(-1, keepdim=True)
    per_step = torch.where(most > 0, torch.full_like(most, 127) / most, 0)  # one rounding
    return (x.float() * per_step).round().to(torch.int8), most / 127


def paged_tree_attention_8bit_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k_scale: Tensor,
    v_scale: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    *others: Tensor | float | None,
) -> Tensor:
    """``paged_tree_attention_8bit`` in plain torch, for finite rows."""
    for rows, cache, scales in ((k, k_cache, k_scale), (v, v_cache, v_scale)):
        _write(rows, cache, scales, slot_mapping)
    keys, values = (
        (cache * scales).to(torch.float32)
        for cache, scales in ((k_cache, k_scale), (v_cache, v_scale))
    )
    none = torch.empty(0, *k.shape[1:])
    return paged_tree_attention_reference(
        q.float(),
        none,
        none,
        keys,
        values,
        positions,
        slot_mapping,
        *others,  # type: ignore[arg-type]
    ).to(q.dtype)


def latent_tree_attention_8bit_reference(
    q_latent: Tensor,
    q_rope: Tensor,
    latent: Tensor,
    key: Tensor,
    latent_cache: Tensor,
    key_cache: Tensor,
    latent_scale: Tensor,
    key_scale: Tensor,
    slot_mapping: Tensor,
    *others: Tensor | float,
) -> Tensor:
    """``latent_tree_attention_8bit`` in plain torch, for finite rows."""
    parts = ((latent, latent_cache, latent_scale), (key, key_cache, key_scale))
    floats = []
    for rows, cache, scales in parts:
        _write(rows.unsqueeze(1), cache, scales, slot_mapping)
        values, steps = rounded_rows(rows)
        floats += [values * steps, cache * scales]
    latents, latent_floats, keys, key_floats = floats
    return latent_tree_attention_reference(
        q_latent.float(),
        q_rope.float(),
        latents,
        keys,
        latent_floats,
        key_floats,
        slot_mapping,
        *others,  # type: ignore[arg-type]
    ).to(q_latent.dtype)


def _write(rows: Tensor, cache: Tensor, scales: Tensor, slot_mapping: Tensor) -> None:
    if len(rows):
        written = slot_mapping >= 0
        values, steps = rounded_rows(rows[written])
        cache.view(-1, *cache.shape[2:])[slot_mapping[written]] = values
        scales.view(-1, *scales.shape[2:])[slot_mapping[written]] = steps


@torch.library.register_fake("trtspec::paged_tree_attention_8bit")  # type: ignore[untyped-decorator]
def _paged_fake(q: Tensor, *_: object) -> Tensor:
    return q.new_empty(q.shape)


@torch.library.register_fake("trtspec::latent_tree_attention_8bit")  # type: ignore[untyped-decorator]
def _latent_fake(q_latent: Tensor, *_: object) -> Tensor:
    return q_latent.new_empty(q_latent.shape)
