"""The TensorRT plugins of ``plugins/tensorrt`` as ONNX nodes, for use while a module is exported.

Nodes of the domain `DOMAIN` name a plugin; its attributes are the plugin's fields, its inputs and
outputs the plugin's tensors, in order. TensorRT's parser finds it in the plugin registry by name,
version and namespace, the latter two from attributes. Outside of an export the results of these
functions are meaningless.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.onnx import ops

from trtspec.ops.sampling import SamplingColumns

DOMAIN = "trtspec"
PLUGIN_VERSION = "1"
PLUGINS = ("TreeMask", "KeyedSample", "TreeAccept", "PagedTreeAttention")
"""The plugins that graphs name."""
_FOUND_BY = {"plugin_version": PLUGIN_VERSION, "plugin_namespace": DOMAIN}
_OPSET = 1  # of the domain


def tree_mask(
    padded: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    is_tree: Tensor,
    tree_mask: Tensor,
    view: Tensor,
    *,
    dtype: torch.dtype,
    sliding_window: int,
) -> Tensor:
    """``TreeMask``: what rows see of the first L positions of a slot cache, ``[B, 1, S, L]`` of
    ``dtype``, 0 for seen and -inf for hidden.

    ``padded [B, S] i64`` says how many rows a request has in the mask, ``view [L] i64`` how many
    positions, by their shapes alone; ``positions`` and
    ``slot_mapping [T] i64`` (-1: padding), ``query_start [B + 1]``, ``context_lens`` and ``is_tree
    [B]``, all i32, and ``tree_mask [T, W] i64`` are those of `paged_tree_attention`. A row that
    sees nothing sees position 0.
    """
    return ops.symbolic(
        f"{DOMAIN}::TreeMask",
        (padded, positions, slot_mapping, query_start, context_lens, is_tree, tree_mask, view),
        {
            "mask_dtype": str(dtype).removeprefix("torch."),
            "sliding_window": sliding_window,
            **_FOUND_BY,
        },
        dtype=dtype,
        shape=(padded.shape[0], 1, padded.shape[1], view.shape[0]),
        version=_OPSET,
    )


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
    *,
    scale: float,
    sliding_window: int,
    soft_cap: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """``PagedTreeAttention``: `trtspec.ops.attention.paged_tree_attention` with ``is_tree`` as i32,
    of as many rows of k and v as of q; and the caches, which are the same memory as those given."""
    return ops.symbolic_multi_out(  # type: ignore[return-value]
        f"{DOMAIN}::PagedTreeAttention",
        (
            *(q, k, v, k_cache, v_cache, positions, slot_mapping),
            *(block_tables, query_start, context_lens, is_tree, tree_mask),
        ),
        {
            "num_heads": q.shape[1],
            "num_kv_heads": k.shape[1],
            "head_dim": q.shape[2],
            "scale": scale,
            "sliding_window": sliding_window,
            "soft_cap": soft_cap,
            **_FOUND_BY,
        },
        dtypes=(q.dtype, k_cache.dtype, v_cache.dtype),
        shapes=(q.shape, k_cache.shape, v_cache.shape),
        version=_OPSET,
    )


def keyed_sample(logits: Tensor, columns: SamplingColumns) -> Tensor:
    """``KeyedSample``: `trtspec.ops.sampling.sample`."""
    return ops.symbolic(
        f"{DOMAIN}::KeyedSample",
        (logits, *columns),
        dict(_FOUND_BY),
        dtype=torch.int64,
        shape=(logits.shape[0],),
        version=_OPSET,
    )


def tree_accept(
    sampled: Tensor, tokens: Tensor, parents: Tensor, row_start: Tensor, width: int
) -> tuple[Tensor, Tensor]:
    """``TreeAccept``: `trtspec.ops.acceptance.accept` for requests of up to ``width`` rows, with
    ``accepted_rows [B, width]``. A request may have no row; it emits nothing. Rows behind
    ``row_start[B]`` are not read."""
    requests = row_start.shape[0] - 1
    accepted_rows, num_emitted = ops.symbolic_multi_out(
        f"{DOMAIN}::TreeAccept",
        (sampled, tokens, parents, row_start),
        {"width": width, **_FOUND_BY},
        dtypes=(torch.int32, torch.int32),
        shapes=((requests, width), (requests,)),
        version=_OPSET,
    )
    return accepted_rows, num_emitted
