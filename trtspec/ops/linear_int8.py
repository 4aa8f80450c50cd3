"""``linear_int8``: ``linear`` with weights of one byte, of which a step reads half or a quarter."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trtspec.errors import ConfigError
from trtspec.ops import native  # noqa: F401  registers the op
from trtspec.ops.linear import linear_reference, output_like, pack_linear, unpack_linear

MAX_INT8 = 127
GROUP_SIZES = (0, 32, 64, 128)
"""Input features of an output that may share a scale; 0: all of them."""


def num_groups(in_features: int, group_size: int) -> int:
    """Scales of one output; the last group may be shorter."""
    return -(-in_features // group_size) if group_size else 1


def quantize_int8(weight: Tensor, group_size: int) -> tuple[Tensor, Tensor]:
    """Round a weight matrix to 8 bits, symmetrically.

    Args:
        weight: [N, K] of finite floats; K at least 1.
        group_size: one of `GROUP_SIZES`.
    Returns:
        values [N, K] int8 from -127 to 127, and scales [N, G] float32: the weight is nearly
        values * scales, with the scale of group k // group_size.
    Raises:
        ConfigError: another group size.
    """
    if group_size not in GROUP_SIZES:
        raise ConfigError(
            f"weight_group_size={group_size} is not one of {', '.join(map(str, GROUP_SIZES))}"
        )
    wide = weight.float()
    parts = torch.split(wide, group_size or wide.shape[1], dim=1)
    highest = torch.stack([part.abs().amax(1) for part in parts], dim=1)
    scales = torch.where(highest > 0, highest / MAX_INT8, 1.0)
    # Of subnormal weights a scale may be zero after all.
    scales = scales.clamp_min(torch.finfo(torch.float32).tiny)
    values = torch.round(wide / spread_scales(scales, wide.shape[1], group_size))
    return values.clamp(-MAX_INT8, MAX_INT8).to(torch.int8), scales


def dequantize_int8(values: Tensor, scales: Tensor, group_size: int) -> Tensor:
    """The weight [N, K] float32 that values [N, K] int8 and scales [N, G] stand for."""
    return values.float() * spread_scales(scales.float(), values.shape[1], group_size)


def spread_scales(scales: Tensor, in_features: int, group_size: int) -> Tensor:
    """Scales [N, G] for every input feature, [N, K], or [N, 1] where all share one."""
    if not group_size:
        return scales
    return scales.repeat_interleave(group_size, dim=1)[:, :in_features]


def pack_linear_int8(values: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    """Pack a quantised weight for ``linear_int8``.

    Args:
        values: [N, K] int8. scales: [N, G] float32.
    Returns:
        packed [ceil(N / 64), K, 64] int8 and scales [ceil(N / 64), G, 64] float32, both as
        ``pack_linear`` packs.
    """
    return pack_linear(values), pack_linear(scales)


def linear_int8(
    x: Tensor,
    packed: Tensor,
    scales: Tensor,
    bias: Tensor | None,
    out_features: int,
    group_size: int,
    out_dtype: torch.dtype | None = None,
    *,
    norm: Tensor | None = None,
    eps: float = 0.0,
    gated: bool = False,
    residual: Tensor | None = None,
) -> Tensor:
    """``linear`` with W = values * scales.

    Each output is a chain of float32 multiply-adds over the groups: of a group's scale and its own
    chain, which is that of ``linear`` over its k with the integers as weights (they are exact in
    every dtype of x); plus the bias in float32, rounded once. So its bits depend on its rows of x
    and of the residual, and on W only.

    Args:
        x: [T, K] float32, bfloat16 or float16; with ``gated`` [T, 2K].
        packed, scales: from ``pack_linear_int8``.
        bias: [out_features], dtype of x, or None.
        out_features: N.
        group_size: one of `GROUP_SIZES`.
        out_dtype: float32, bfloat16 or float16; dtype of x if None.
        norm, eps, gated, residual: as in ``linear``.
    Returns:
        [T, out_features] of out_dtype.
    Raises:
        RuntimeError: shapes or dtypes do not fit, or another group size.
    """
    result: Tensor = torch.ops.trtspec.linear_int8(
        x,
        packed,
        scales,
        bias,
        out_features,
        group_size,
        out_dtype,
        norm=norm,
        eps=eps,
        gated=gated,
        residual=residual,
    )
    return result


def linear_int8_reference(
    x: Tensor,
    packed: Tensor,
    scales: Tensor,
    bias: Tensor | None,
    out_features: int,
    group_size: int,
    out_dtype: torch.dtype | None = None,
    **fused: Any,
) -> Tensor:
    """``linear_int8`` in plain torch; the same but for the order of the additions."""
    values = unpack_linear(packed, out_features)
    factors = unpack_linear(scales, out_features)
    weight = pack_linear(dequantize_int8(values, factors, group_size))
    return linear_reference(x, weight, bias, out_features, out_dtype, **fused)


@torch.library.register_fake("trtspec::linear_int8")  # type: ignore[untyped-decorator]
def _linear_int8_fake(
    x: Tensor,
    packed: Tensor,
    scales: Tensor,
    bias: Tensor | None,
    out_features: int,
    group_size: int,
    out_dtype: torch.dtype | None = None,
    **_: Any,
) -> Tensor:
    return output_like(x, out_features, out_dtype)
