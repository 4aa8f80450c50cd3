"""``linear``: x W^T + bias for few rows, at the speed of reading W, with bits that never depend on
the other rows of the call; and what stands before and behind it in a decoder layer."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.errors import ConfigError
from trtspec.ops import native  # noqa: F401  registers the op

PANEL = 64
"""Output features that are packed together."""


def in_pairs(dtype: torch.dtype, depth: int) -> bool:
    """Whether weights of K = ``depth`` inputs are packed in pairs of these, as processors multiply
    bfloat16."""
    return dtype == torch.bfloat16 and depth % 2 == 0


def pack_linear(weight: Tensor) -> Tensor:
    """Pack a weight matrix for ``linear``.

    Args:
        weight: [N, K], as torch.nn.Linear has it; any dtype.
    Returns:
        packed [ceil(N / 64), K, 64] with packed[p, k, c] = weight[64 p + c, k]; zero beyond N.
        If `in_pairs`, each [2, 64] of two inputs is kept as [64, 2].
    """
    if weight.dim() != 2:
        raise ConfigError(f"pack_linear: weight must be [N, K], got shape {list(weight.shape)}")
    rows, depth = weight.shape
    padded = F.pad(weight, (0, 0, 0, -rows % PANEL))
    panels = padded.view(-1, PANEL, depth)
    if in_pairs(weight.dtype, depth):
        paired = panels.view(-1, PANEL, depth // 2, 2).transpose(1, 2)
        return paired.reshape(-1, depth, PANEL)
    return panels.transpose(1, 2).contiguous()


def unpack_linear(packed: Tensor, out_features: int) -> Tensor:
    """The weight [out_features, K] that ``pack_linear`` packed."""
    depth = packed.shape[1]
    if in_pairs(packed.dtype, depth):
        by_output = packed.view(-1, depth // 2, PANEL, 2).transpose(1, 2)
    else:
        by_output = packed.transpose(1, 2)
    return by_output.reshape(-1, depth)[:out_features]


def packed_rows(packed: Tensor, ids: Tensor) -> Tensor:
    """Rows ``ids`` of the weight that ``pack_linear`` packed, ``[*ids.shape, K]``."""
    panels, depth, _ = packed.shape
    if not in_pairs(packed.dtype, depth):
        return packed[ids // PANEL, :, ids % PANEL]
    pairs = packed.view(panels, depth // 2, PANEL, 2)
    return pairs[ids // PANEL, :, ids % PANEL].flatten(-2)


def linear(
    x: Tensor,
    packed: Tensor,
    bias: Tensor | None,
    out_features: int,
    out_dtype: torch.dtype | None = None,
    *,
    norm: Tensor | None = None,
    eps: float = 0.0,
    gated: bool = False,
    residual: Tensor | None = None,
) -> Tensor:
    """residual + (f(x) W^T + bias), where f is the identity, `rms_norm` or `swiglu`.

    Each output is one chain of float32 multiply-adds over k = 0 .. K - 1, plus the bias in float32,
    rounded once, plus the residual, rounded again. So its bits depend on its rows of x and of the
    residual, and on W only.

    Args:
        x: [T, K] float32, bfloat16 or float16; with ``gated`` [T, 2K].
        packed: [ceil(out_features / 64), K, 64] from ``pack_linear``, dtype of x.
        bias: [out_features], dtype of x, or None.
        out_features: N.
        out_dtype: float32, bfloat16 or float16; dtype of x if None.
        norm, eps: of `rms_norm`, if it is to be taken of x first.
        gated: whether `swiglu` is; not with ``norm``.
        residual: [T, out_features] of out_dtype, or None.
    Returns:
        [T, out_features] of out_dtype.
    Raises:
        RuntimeError: shapes or dtypes do not fit.
    """
    result: Tensor = torch.ops.trtspec.linear(
        x,
        packed,
        bias,
        out_features,
        out_dtype,
        norm=norm,
        eps=eps,
        gated=gated,
        residual=residual,
    )
    return result


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``weight * (x / sqrt(mean(x^2) + eps))`` over the last dimension: the norm in float32,
    rounded to x's dtype before the weight multiplies, which is Llama's order of rounding."""
    wide = x.float()
    mean_square = wide.pow(2).mean(-1, keepdim=True)
    return weight * (wide * torch.rsqrt(mean_square + eps)).to(x.dtype)


def swiglu(x: Tensor) -> Tensor:
    """``silu(gate) * up`` [T, K] of gate and up side by side [T, 2K]; in float32, rounded once."""
    gate, up = x.float().chunk(2, dim=-1)
    # silu written out: torch's own kernel rounds an array's tail differently from its body, which
    # would let the number of rows in a call change a row's bits.
    return (gate / (1 + torch.exp(-gate)) * up).to(x.dtype)


def linear_reference(
    x: Tensor,
    packed: Tensor,
    bias: Tensor | None,
    out_features: int,
    out_dtype: torch.dtype | None = None,
    *,
    norm: Tensor | None = None,
    eps: float = 0.0,
    gated: bool = False,
    residual: Tensor | None = None,
) -> Tensor:
    """``linear`` in plain torch; the same but for the order of the additions."""
    weight, dtype = unpack_linear(packed, out_features).float(), out_dtype or x.dtype
    if norm is not None:
        x = rms_norm(x, norm, eps)
    y = (swiglu(x) if gated else x).float() @ weight.t()
    if bias is not None:
        y = y + bias.float()
    return y.to(dtype) if residual is None else residual + y.to(dtype)


def output_like(x: Tensor, out_features: int, out_dtype: torch.dtype | None) -> Tensor:
    """Where a product of the rows of x goes, uninitialised."""
    return x.new_empty((x.shape[0], out_features), dtype=out_dtype or x.dtype)


@torch.library.register_fake("trtspec::linear")  # type: ignore[untyped-decorator]
def _linear_fake(
    x: Tensor,
    packed: Tensor,
    bias: Tensor | None,
    out_features: int,
    out_dtype: torch.dtype | None = None,
    **_: Any,
) -> Tensor:
    return output_like(x, out_features, out_dtype)
