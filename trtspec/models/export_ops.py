"""Standard ONNX operators (opset 24) without a torch counterpart, for use while a module is
exported; outside of an export their results are meaningless."""

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
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    scale: float,
    soft_cap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """``Attention`` of ``q [B, Hq, S, D]`` over ``k`` and ``v [B, Hkv, L, D]``; query heads share
    key heads in order; heads of v may have another size, then so has the result. ``mask [B, 1, S,
    L]``: bool, True where a row sees a position, or of q's dtype, added to the scores.
    ``soft_cap``, ``sinks``: see `paged_tree_attention`, both written out: the operator has a cap
    too, but which of it and the mask comes first differs between runtimes."""
    if soft_cap or sinks is not None:
        return _written_out(q, k, v, mask, scale, soft_cap, sinks)
    return ops.symbolic(
        "Attention",
        (q, k, v, mask),
        {"scale": scale},
        dtype=q.dtype,
        shape=(*q.shape[:-1], v.shape[-1]),
        version=OPSET,
    )


def _written_out(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    scale: float,
    soft_cap: float,
    sinks: Tensor | None,
) -> Tensor:
    """In float32; a row that sees nothing is zero."""
    group = q.shape[1] // k.shape[1]
    shared = q.view(-1, k.shape[1], group, *q.shape[2:]).float()
    scores = shared @ k.float().transpose(-1, -2).unsqueeze(2) * scale
    if soft_cap:
        scores = soft_cap * (scores / soft_cap).tanh()
    seen = mask.unsqueeze(1)
    is_bool = mask.dtype == torch.bool
    scores = scores.masked_fill(~seen, -1e30) if is_bool else scores + seen.float()
    keys = scores.shape[-1]
    if sinks is not None:
        own = sinks.view(1, k.shape[1], group, 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat((scores, own), dim=-1)
    weights = scores.softmax(-1)
    weights = weights if sinks is None else weights[..., :keys]
    if is_bool:
        weights = weights.masked_fill(~seen, 0)
    out: Tensor = weights @ v.float().unsqueeze(2)
    return out.flatten(1, 2).to(q.dtype)
