"""``latent_tree_attention``: writes latents and attends to them, in the absorbed form of multi-head
latent attention (DeepSeek-V2, arXiv 2405.04434, 2.1)."""

from __future__ import annotations

import torch
from torch import Tensor

from trtspec.ops import native  # noqa: F401  registers the op
from trtspec.ops.attention import paged_tree_attention_reference


def latent_tree_attention(
    q_latent: Tensor,
    q_rope: Tensor,
    latent: Tensor,
    key: Tensor,
    latent_cache: Tensor,
    key_cache: Tensor,
    slot_mapping: Tensor,
    block_tables: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    is_tree: Tensor,
    tree_mask: Tensor,
    scale: float,
) -> Tensor:
    """Write each row's latent and key into the caches, then let every head attend to those of all
    tokens that the row sees, as in `paged_tree_attention` without a window: a score is ``scale *
    (q_latent . latent + q_rope . key)``, the result the weighted sum of latents.

    A token is read once for all heads (once for each part of the heads, where several threads share
    few rows). The bits of a row's result depend only on its query and on the list of tokens that it
    sees, in order.

    Args:
        q_latent: [T, H, R] float32, bfloat16 or float16; arithmetic is in float32.
        q_rope: [T, H, P]; latent: [T, R]; key: [T, P]; all of the dtype of q_latent.
        latent_cache, key_cache: [num_blocks, block_size, 1, R] and [.., 1, P], written in place.
        slot_mapping, block_tables, query_start, context_lens, is_tree, tree_mask: as in
            `paged_tree_attention`.
        scale: factor of the scores.
    Returns:
        [T, H, R], dtype of q_latent. Padding, and a row that sees nothing, is zero.
    Raises:
        RuntimeError: shapes or dtypes do not fit.
        ValueError: a slot, block, length or mask lies outside the caches or tables.
    """
    result: Tensor = torch.ops.trtspec.latent_tree_attention(
        q_latent,
        q_rope,
        latent,
        key,
        latent_cache,
        key_cache,
        slot_mapping,
        block_tables,
        query_start,
        context_lens,
        is_tree,
        tree_mask,
        scale,
    )
    return result


def latent_tree_attention_reference(
    q_latent: Tensor,
    q_rope: Tensor,
    latent: Tensor,
    key: Tensor,
    latent_cache: Tensor,
    key_cache: Tensor,
    slot_mapping: Tensor,
    block_tables: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    is_tree: Tensor,
    tree_mask: Tensor,
    scale: float,
) -> Tensor:
    """``latent_tree_attention`` in plain torch: latent and key side by side are the one key of
    all heads, the latent is its value."""
    written = slot_mapping >= 0
    for cache, rows in ((latent_cache, latent), (key_cache, key)):
        cache.view(-1, cache.shape[-1])[slot_mapping[written]] = rows[written]
    values = torch.nn.functional.pad(latent_cache, (0, key_cache.shape[-1]))
    attended = paged_tree_attention_reference(
        torch.cat((q_latent, q_rope), -1),
        torch.cat((latent, key), -1).unsqueeze(1),
        torch.nn.functional.pad(latent, (0, key.shape[-1])).unsqueeze(1),
        torch.cat((latent_cache, key_cache), -1),
        values,
        slot_mapping,  # positions count with a window only
        slot_mapping,
        block_tables,
        query_start,
        context_lens,
        is_tree,
        tree_mask,
        scale,
        0,
    )
    return attended[..., : latent.shape[-1]]


@torch.library.register_fake("trtspec::latent_tree_attention")  # type: ignore[untyped-decorator]
def _latent_tree_attention_fake(
    q_latent: Tensor,
    q_rope: Tensor,
    latent: Tensor,
    key: Tensor,
    latent_cache: Tensor,
    key_cache: Tensor,
    slot_mapping: Tensor,
    block_tables: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    is_tree: Tensor,
    tree_mask: Tensor,
    scale: float,
) -> Tensor:
    return q_latent.new_empty(q_latent.shape)
