"""Standard ONNX operators (opset 24) that torch has no operator for. They are for use while a
module is exported: what they return outside of an export means nothing."""

from __future__ import annotations

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


def rotary_embedding(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``RotaryEmbedding`` of heads ``x [B, H, S, D]`` by ``cos`` and ``sin [B, S, D / 2]`` of x's
    dtype, dimension i turning with dimension i + D / 2."""
    return ops.symbolic(
        "RotaryEmbedding",
        (x, cos, sin),
        {"interleaved": 0},
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


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """``Attention`` of ``q [B, Hq, S, D]`` over ``k`` and ``v [B, Hkv, L, D]``; query heads share
    key heads in order. ``mask [B, 1, S, L]``: bool, True where a row sees a position, or of q's
    dtype, added to the scores."""
    return ops.symbolic(
        "Attention",
        (q, k, v, mask),
        {"scale": scale},
        dtype=q.dtype,
        shape=q.shape,
        version=OPSET,
    )
