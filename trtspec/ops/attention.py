"""``paged_tree_attention``: writes K/V and attends, for prefill chunks, decode rows and token trees
of many requests in one call."""

from __future__ import annotations

import torch
from torch import Tensor

from trtspec.ops import native  # noqa: F401  registers the op


def paged_tree_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
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
    """Write the rows' K/V into the caches, then attend.

    Rows query_start[b] .. query_start[b + 1] - 1 are request b's. Each sees, through
    block_tables[b]:

    - committed cache positions 0 .. context_lens[b] - 1;
    - position context_lens[b] + j, for j <= the row's index in its request if not is_tree[b], or
      for every j whose bit is set in the row's tree mask (whichever call wrote it) if is_tree[b].

    With a sliding window w > 0, a committed or causal key at cache position p is seen only if
    positions[t] - p < w; tree-mask keys are never hidden.

    The bits of a row's result depend only on its query and on the list of keys it sees, in order:
    not on where they lie, the other rows of the call, or the number of threads.

    Args:
        q: [T, Hq, D] float32, bfloat16 or float16; arithmetic is in float32.
        k, v: [T, Hkv, D], dtype of q; Hq is a multiple of Hkv. [0, Hkv, D]: the caches hold what
            the rows see, nothing is written.
        k_cache, v_cache: [num_blocks, block_size, Hkv, D], dtype of q, written in place.
        positions: [T] int64, the rows' positions in their sequences (for the window).
        slot_mapping: [T] int64, the flat slot block * block_size + offset a row's K/V goes to; -1
            marks padding: nothing is written and the row's output is zero.
        block_tables: [B, M] int32, blocks of each request by position // block_size.
        query_start: [B + 1] int32, from 0; rows from query_start[B] on are padding.
        context_lens: [B] int32.
        is_tree: [B] bool.
        tree_mask: [T, W] int64, bit j % 64 of word j // 64; ignored where not is_tree.
        scale: factor of q k^T.
        sliding_window: tokens, 0 for none.
        soft_cap: scores s become cap * tanh(s / cap), before the softmax; 0 for none.
        sinks: [Hq] float32, a score of each head that takes part in the softmax of every row and
            gives nothing, or None. On CPUs.
    Returns:
        [T, Hq, D], dtype of q. A row that sees nothing is zero.
    Raises:
        RuntimeError: shapes or dtypes do not fit.
        ValueError: a slot, block, length or mask lies outside the caches or tables.
    """
    result: Tensor = torch.ops.trtspec.paged_tree_attention(
        q,
        k,
        v,
        k_cache,
        v_cache,
        positions,
        slot_mapping,
        block_tables,
        query_start,
        context_lens,
        is_tree,
        tree_mask,
        scale,
        sliding_window,
        soft_cap,
        sinks,
    )
    return result


def paged_tree_attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
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
    """``paged_tree_attention`` in plain torch, one row after the other."""
    keys = k_cache.view(-1, *k_cache.shape[2:])
    values = v_cache.view(-1, *v_cache.shape[2:])
    if len(k):
        written = slot_mapping >= 0
        keys[slot_mapping[written]] = k[written]
        values[slot_mapping[written]] = v[written]

    group = q.shape[1] // k.shape[1]
    out = torch.zeros_like(q)
    for b in range(context_lens.shape[0]):
        first = int(query_start[b])
        for t in range(first, int(query_start[b + 1])):
            if slot_mapping[t] < 0:
                continue
            seen = _visible_positions(
                context=int(context_lens[b]),
                index=t - first,
                position=int(positions[t]),
                mask=tree_mask[t] if is_tree[b] else None,
                sliding_window=sliding_window,
            )
            if seen.numel() == 0:
                continue
            block_size = k_cache.shape[1]
            slots = block_tables[b, seen // block_size].long() * block_size + seen % block_size
            row_keys = keys[slots].float().repeat_interleave(group, dim=1)  # [n, Hq, D]
            row_values = values[slots].float().repeat_interleave(group, dim=1)
            scores = torch.einsum("hd,nhd->hn", q[t].float(), row_keys) * scale
            if soft_cap > 0:
                scores = soft_cap * (scores / soft_cap).tanh()
            if sinks is not None:
                scores = torch.cat([scores, sinks[:, None]], dim=-1)
            weights = scores.softmax(-1)[:, : len(seen)]
            out[t] = torch.einsum("hn,nhd->hd", weights, row_values).to(q.dtype)
    return out


def _visible_positions(
    context: int, index: int, position: int, mask: Tensor | None, sliding_window: int
) -> Tensor:
    """Cache positions that a row sees, ascending."""
    seen = torch.arange(context if mask is not None else context + index + 1)
    if sliding_window > 0:
        seen = seen[position - seen < sliding_window]
    if mask is None:
        return seen
    bits = (mask[:, None] >> torch.arange(64)) & 1  # bit 63 too: the shift copies the sign
    return torch.cat([seen, context + bits.flatten().nonzero().flatten()])


@torch.library.register_fake("trtspec::paged_tree_attention")  # type: ignore[untyped-decorator]
def _paged_tree_attention_fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
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
    return q.new_empty(q.shape)
