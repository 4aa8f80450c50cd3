"""``kv_compact``: moves rows of K/V caches, so that a tree's accepted rows become contiguous."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trtspec.ops import native  # noqa: F401  registers the op


def kv_compact(caches: Sequence[Tensor], src_slots: Tensor, dst_slots: Tensor) -> None:
    """In every cache, move row src_slots[i] to dst_slots[i], as if all rows were read before any is
    written.

    Args:
        caches: contiguous [num_blocks, block_size, heads, size] of any dtype, written in place.
            Slot = block * block_size + offset.
        src_slots, dst_slots: [n] int64; a pair with -1 on either side is skipped.
    Raises:
        ValueError: a slot lies outside the caches, or two rows move to one slot.
        RuntimeError: shapes or dtypes do not fit.
    """
    torch.ops.trtspec.kv_compact(list(caches), src_slots, dst_slots)


def kv_compact_reference(caches: Sequence[Tensor], src_slots: Tensor, dst_slots: Tensor) -> None:
    """``kv_compact`` in plain torch."""
    kept = (src_slots >= 0) & (dst_slots >= 0)
    for cache in caches:
        rows = cache.view(-1, *cache.shape[2:])
        rows[dst_slots[kept]] = rows[src_slots[kept]].clone()


@torch.library.register_fake("trtspec::kv_compact")  # type: ignore[untyped-decorator]
def _kv_compact_fake(caches: Sequence[Tensor], src_slots: Tensor, dst_slots: Tensor) -> None:
    return None
