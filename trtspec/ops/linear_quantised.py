"""Linear layers with weights of 4 or 8 bits: how these are packed, and what their product is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.errors import ConfigError
from trtspec.ops import native  # noqa: F401  registers the op
from trtspec.ops.linear import output_like, rms_norm, swiglu

OUTPUTS = 16
"""Output features that are packed together."""
GROUP_SIZES = (0, 16, 32, 64, 128, 256)
"""Input features of an output that may share a scale; 0: all of them."""
MOST_INPUTS = 128
"""Input features of a row that share a scale, at most, where inputs are rounded."""
_MAX = 127
_SMALLEST = 1e-30  # a group of inputs below is zero


@dataclass(frozen=True)
class QuantisedWeights:
    """Packed weights ``W = (value - zero) * scale + offset`` of N outputs and K inputs.

    packed: ``[ceil(N / 16), ceil(K / D), 16, 4] uint8`` with D = 8 inputs of 4 bits, or D = 4 of 8.
    Byte ``[p, b, c, j]`` holds ``value + 8`` of output 16 p + c and input 8 b + j in its lower
    four bits and of input 8 b + 4 + j in the upper ones, or ``value + 128`` of input 4 b + j.
    Values beyond N or K are zero.
    scales: ``[ceil(N / 16), G, 16]`` float32, float16 or bfloat16, of group k // group_size.
    zeros: as scales, int8, or None. offsets: as scales, or None; not with zeros.
    input_scales: ``[K]`` of the dtype of x, or None: factors of the inputs.
    permutation: ``[K] i32`` or None: packed input k is input permutation[k] of the layer.
    table: ``[16] int8`` or None: values of 4 bits, plus 8, are places in it instead, as those of
    FP4 or NF4 are.
    e4m3: whether bytes, as those of values of 8 bits lie, are floats of 4 bits of exponent and 3 of
    mantissa instead (FP8), finite ones. Their products are of floats.
    """

    packed: Tensor
    scales: Tensor
    zeros: Tensor | None = None
    offsets: Tensor | None = None
    input_scales: Tensor | None = None
    permutation: Tensor | None = None
    table: Tensor | None = None
    e4m3: bool = False


def num_groups(in_features: int, group_size: int) -> int:
    """Scales of one output; the last group may be shorter."""
    return -(-in_features // group_size) if group_size else 1


def inputs_per_block(bits: int) -> int:
    """Inputs of an output that lie in four bytes."""
    return 32 // bits


def round_weights(
    weight: Tensor, bits: int, group_size: int, scale_dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Round a weight matrix to so many bits, to the nearest value, symmetrically.

    Args:
        weight: [N, K] of finite floats; K at least 1.
        bits: 8: values from -127 to 127, as the largest magnitude of a group is 127 times its
            scale. 4: values from -8 to 7, as the weight of that magnitude is -8 times the scale,
            which may be negative.
        group_size: one of `GROUP_SIZES`.
    Returns:
        values [N, K] int8 and scales [N, G]: the weight is nearly values * scales, with the scale
        of group k // group_size.
    Raises:
        ConfigError: another group size.
    """
    if group_size not in GROUP_SIZES:
        raise ConfigError(
            f"weight_group_size={group_size} is not one of {', '.join(map(str, GROUP_SIZES))}"
        )
    wide = weight.float()
    depth = wide.shape[1]
    size = group_size or depth
    grouped = F.pad(wide, (0, -depth % size)).view(len(wide), -1, size)
    lowest, highest = grouped.amin(2), grouped.amax(2)
    if bits == 8:
        extreme, value = torch.maximum(highest, -lowest), _MAX
        low, high = -_MAX, _MAX
    else:
        extreme = torch.where(highest > -lowest, highest, lowest)
        low, high = -(1 << bits - 1), (1 << bits - 1) - 1
        value = low
    scales = (extreme / value).to(scale_dtype)
    # A scale of the smallest weights may round to zero.
    tiny = torch.finfo(scale_dtype).tiny
    scales = torch.where(scales.abs() >= tiny, scales, torch.where(extreme == 0, 1.0, tiny))
    scales = scales.to(scale_dtype)
    values = torch.round(grouped / scales.float()[..., None]).clamp(low, high)
    return values.view(len(wide), -1)[:, :depth].to(torch.int8), scales


def spread(values: Tensor, in_features: int, group_size: int) -> Tensor:
    """Values [N, G] of groups for every input feature, [N, K], or [N, 1] where all share one."""
    if not group_size:
        return values
    return values.repeat_interleave(group_size, dim=1)[:, :in_features]


def pack_values(values: Tensor, bits: int) -> Tensor:
    """Values [N, K] int8 as `QuantisedWeights.packed`."""
    rows, depth = values.shape
    block = inputs_per_block(bits)
    padded = F.pad(values, (0, -depth % block, 0, -rows % OUTPUTS))
    positive = (padded.to(torch.int16) + (1 << bits - 1)).to(torch.uint8)
    by_block = positive.view(-1, OUTPUTS, padded.shape[1] // block, block).transpose(1, 2)
    if bits == 8:
        return by_block.contiguous()
    return (by_block[..., :4] | by_block[..., 4:] << 4).contiguous()


def pack_floats(values: Tensor) -> Tensor:
    """Values [N, K] float8_e4m3fn as `QuantisedWeights.packed`."""
    return pack_values(values.view(torch.int8) ^ -128, 8)


def unpack_values(packed: Tensor, bits: int, out_features: int, in_features: int) -> Tensor:
    """The values [N, K] int8 that `pack_values` packed."""
    if bits == 4:
        packed = torch.cat([packed & 15, packed >> 4], dim=-1)
    by_output = packed.transpose(1, 2).flatten(2).flatten(0, 1)
    values = by_output[:out_features, :in_features].to(torch.int16) - (1 << bits - 1)
    return values.to(torch.int8)


def pack_groups(values: Tensor) -> Tensor:
    """Scales, zeros or offsets [N, G] as `QuantisedWeights` has them, zero beyond N."""
    rows, groups = values.shape
    padded = F.pad(values, (0, 0, 0, -rows % OUTPUTS))
    return padded.view(-1, OUTPUTS, groups).transpose(1, 2).contiguous()


def unpack_groups(packed: Tensor, out_features: int) -> Tensor:
    """The values [N, G] that `pack_groups` packed."""
    return packed.transpose(1, 2).flatten(0, 1)[:out_features]


def dequantise(
    weights: QuantisedWeights, bits: int, group_size: int, out_features: int, in_features: int
) -> Tensor:
    """The weight [N, K] float32, by which x itself is multiplied: input scales are in it, and its
    inputs are in the layer's order."""
    values = unpack_values(weights.packed, bits, out_features, in_features)
    return _floats(weights, values, lambda each: unpack_groups(each, out_features), group_size)


def dequantised_rows(
    weights: QuantisedWeights, bits: int, group_size: int, ids: Tensor, in_features: int
) -> Tensor:
    """Rows ids [T] i64 of what `dequantise` gives, bit for bit, [T, K] float32; no others are
    read."""
    panel, output = ids // OUTPUTS, ids % OUTPUTS
    packed = weights.packed[panel, :, output]
    if bits == 4:
        packed = torch.cat([packed & 15, packed >> 4], dim=-1)
    values = (packed.flatten(1)[:, :in_features].to(torch.int16) - (1 << bits - 1)).to(torch.int8)
    return _floats(weights, values, lambda each: each[panel, :, output], group_size)


def _floats(
    weights: QuantisedWeights, values: Tensor, take: Callable[[Tensor], Tensor], group_size: int
) -> Tensor:
    """The weight of values [N, K], with scales, zeros and offsets [N, G] as ``take`` finds them."""

    def spread_out(part: Tensor) -> Tensor:
        return spread(take(part).float(), values.shape[1], group_size)

    if weights.e4m3:
        weight = (values ^ -128).view(torch.float8_e4m3fn).float()
    else:
        weight = (values if weights.table is None else weights.table[values.int() + 8]).float()
    if weights.zeros is not None:
        weight = weight - spread_out(weights.zeros)
    weight = weight * spread_out(weights.scales)
    if weights.offsets is not None:
        weight = weight + spread_out(weights.offsets)
    if weights.permutation is not None:
        ordered = torch.empty_like(weight)
        ordered[:, weights.permutation.long()] = weight
        weight = ordered
    return weight if weights.input_scales is None else weight * weights.input_scales.float()


def input_group(group_size: int) -> int:
    """Input features of a row that share a scale where they are rounded."""
    return min(group_size or MOST_INPUTS, MOST_INPUTS)


def round_inputs(x: Tensor, group_size: int, bits: int) -> tuple[Tensor, Tensor]:
    """Round rows to 8 or 16 bits, each by itself.

    Args:
        x: [T, K] floats.
        group_size: of the weights; `input_group` of its inputs share a scale.
    Returns:
        values [T, K] int8 or int16 from -m to m with m = 2^(bits - 1) - 1, and scales [T, G]
        float32, where x is nearly values * scales: a scale is the largest magnitude of its group
        over m.
    """
    size, depth = input_group(group_size), x.shape[1]
    most = (1 << bits - 1) - 1
    grouped = F.pad(x.float(), (0, -depth % size)).view(len(x), -(-depth // size), size)
    highest = grouped.abs().amax(2)
    is_zero = highest < _SMALLEST
    inverse = torch.where(is_zero, 0.0, most / highest)
    values = torch.round(grouped * inverse[..., None]).to(getattr(torch, f"int{bits}"))
    return values.flatten(1)[:, :depth], torch.where(is_zero, 0.0, highest / most)


def linear_quantised(
    x: Tensor,
    weights: QuantisedWeights,
    bias: Tensor | None,
    out_features: int,
    bits: int,
    group_size: int,
    input_bits: int,
    out_dtype: torch.dtype | None = None,
    *,
    norm: Tensor | None = None,
    eps: float = 0.0,
    gated: bool = False,
    residual: Tensor | None = None,
) -> Tensor:
    """residual + (f(x) W^T + bias), with quantised weights.

    With ``input_bits`` the products of a group are summed as whole numbers, which is exact, and
    the groups in their order by float32 multiply-adds. So a row's bits depend on its rows of x and
    of the residual, and on W only; and they are the same on every instruction set with fused
    multiply-adds.

    Args:
        x: [T, K] float32, bfloat16 or float16; with ``gated`` [T, 2K].
        bits, group_size: of the weights; one of `GROUP_SIZES`.
        input_bits: 8 or 16, to which inputs are rounded, as `round_inputs` does, after norm or
            gate, input scales and permutation; 0: they are not.
        out_features, bias, out_dtype, norm, eps, gated, residual: as in `linear`.
    Returns:
        [T, out_features] of out_dtype.
    Raises:
        RuntimeError: shapes or dtypes do not fit, or another number of bits or group size.
    """
    if weights.input_scales is not None or weights.permutation is not None:
        x = arranged(
            rms_norm(x, norm, eps) if norm is not None else swiglu(x) if gated else x, weights
        )
        norm, gated = None, False
    result: Tensor = torch.ops.trtspec.linear_quantised(
        x,
        weights.packed,
        weights.scales,
        weights.zeros,
        weights.offsets,
        bias,
        out_features,
        bits,
        group_size,
        input_bits,
        out_dtype,
        norm=norm,
        eps=eps,
        gated=gated,
        residual=residual,
        table=weights.table,
        e4m3=weights.e4m3,
    )
    return result


def arranged(x: Tensor, weights: QuantisedWeights) -> Tensor:
    """Inputs times their factors, in the order of the weights."""
    if weights.input_scales is not None:
        x = x * weights.input_scales
    return x if weights.permutation is None else x[:, weights.permutation.long()]


def linear_quantised_reference(
    x: Tensor,
    weights: QuantisedWeights,
    bias: Tensor | None,
    out_features: int,
    bits: int,
    group_size: int,
    input_bits: int,
    out_dtype: torch.dtype | None = None,
    *,
    norm: Tensor | None = None,
    eps: float = 0.0,
    gated: bool = False,
    residual: Tensor | None = None,
) -> Tensor:
    """``linear_quantised`` in plain torch; the same but for the order of the additions."""
    dtype = out_dtype or x.dtype
    x = rms_norm(x, norm, eps) if norm is not None else swiglu(x) if gated else x
    x = arranged(x, weights)
    if input_bits:
        values, scales = round_inputs(x, group_size, input_bits)
        x = values * spread(scales, values.shape[1], input_group(group_size))
    plain = replace(weights, input_scales=None, permutation=None)
    y = x.float() @ dequantise(plain, bits, group_size, out_features, x.shape[1]).t()
    if bias is not None:
        y = y + bias.float()
    return y.to(dtype) if residual is None else residual + y.to(dtype)


@torch.library.register_fake("trtspec::linear_quantised")  # type: ignore[untyped-decorator]
def _linear_quantised_fake(
    x: Tensor,
    packed: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    offsets: Tensor | None,
    bias: Tensor | None,
    out_features: int,
    bits: int,
    group_size: int,
    input_bits: int,
    out_dtype: torch.dtype | None = None,
    **_: Any,
) -> Tensor:
    return output_like(x, out_features, out_dtype)
