"""Standard ONNX operators (opset 24) that torch has no operator for. They are for use while a
module is exported: what they return outside of an export means nothing."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.onnx import ops

OPSET = 24
_FLOAT = 1  # TensorProto.FLOAT


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``RMSNormalization`` over the last dimension: the norm in float32, rounded to x's dtype
    before the weight multiplies."""
    return ops.symbolic(
        "RMSNormalization",
        (x, weight),
        {"axis": -1, "epsilon": eps, "stash_type": _FLOAT},
        dtype=x.dtype,
        shape=x.shape,
        version=OPSET,
    )


def rotary_embedding(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """``RotaryEmbedding`` of the first n elements of heads ``x [B, H, S, D]`` by ``cos`` and ``sin
    [B, S, n / 2]`` of x's dtype, element i turning with i + n / 2; ``interleaved``: neighbours with
    each other."""
    size = 2 * cos.shape[-1]
    part = {"rotary_embedding_dim": size} if size < x.shape[-1] else {}
    return ops.symbolic(
        "RotaryEmbedding",
        (x, cos, sin),
        {"interleaved": int(interleaved), **part},
        dtype=x.dtype,
        shape=x.shape,
        version=OPSET,
    )


def tensor_scatter(cache: Tensor, update: Tensor, write_indices: Tensor) -> Tensor:
    """``TensorScatter``: ``cache [B, H, L, D]`` with ``update [B, H, S, D]`` at positions
    ``write_indices[b] .. + S - 1 [B] i64`` of each batch entry, which must lie inside."""
    return ops.symbolic(
        "TensorScatter",
        (cache, update, write_indices),
        {"axis": -2, "mode": "linear"},
        dtype=cache.dtype,
        shape=cache.shape,
        version=OPSET,
    )


def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float, soft_cap: float = 0.0
) -> Tensor:
    """``Attention`` of ``q [B, Hq, S, D]`` over ``k`` and ``v [B, Hkv, L, D]``; query heads share
    key heads in order; heads of v may have another size, then so has the result. ``mask [B, 1, S,
    L]``: bool, True where a row sees a position, or of q's dtype, added to the scores.
    ``soft_cap``: see `paged_tree_attention`; the operator has one too, but which of cap and mask
    comes first differs between runtimes, so the cap is written out."""
    if soft_cap:
        return _capped_attention(q, k, v, mask, scale, soft_cap)
    return ops.symbolic(
        "Attention",
        (q, k, v, mask),
        {"scale": scale},
        dtype=q.dtype,
        shape=(*q.shape[:-1], v.shape[-1]),
        version=OPSET,
    )


def _capped_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float, soft_cap: float
) -> Tensor:
    """In float32, a row that sees nothing being zero."""
    group = q.shape[1] // k.shape[1]
    shared = q.view(-1, k.shape[1], group, *q.shape[2:]).float()
    scores = shared @ k.float().transpose(-1, -2).unsqueeze(2) * scale
    scores = soft_cap * (scores / soft_cap).tanh()
    if mask.dtype == torch.bool:
        seen = mask.unsqueeze(1)
        scores = scores.masked_fill(~seen, -1e30)
        weights = scores.softmax(-1).masked_fill(~seen, 0)
    else:
        weights = (scores + mask.float().unsqueeze(1)).softmax(-1)
    out: Tensor = weights @ v.float().unsqueeze(2)
    return out.flatten(1, 2).to(q.dtype)
