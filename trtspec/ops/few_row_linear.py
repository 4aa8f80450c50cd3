"""``few_row_linear``: x W^T + bias on CUDA, for at most `FEW_ROWS` rows at the speed of reading W;
and how it packs weights of 4 and 8 bits.

The tensor cores' instruction mma.m16n8k16 multiplies a tile of 16 outputs by 16 inputs. Packed
weights lie as its lanes want them, so that a lane of a warp reads 16 bytes, and all lanes 512 bytes
in a row: ``packed [ceil(N / 16), ceil(K / 64), bits / 4, 32 lanes, 16 bytes] uint8``, for each tile
of outputs its stages of 64 inputs, four steps of the instruction. Lane l has of a step the outputs
``l // 4 + 8 a`` of the tile, and the inputs ``2 (l % 4) + 8 b + h``, with a, b and h 0 or 1:

- 4 bits: bytes 4 s to 4 s + 3 are of step s; byte 2 h + b has a = 0 in its lower half and a = 1 in
  the upper.
- 8 bits: part p has steps 2 p and 2 p + 1, 8 bytes each; byte 4 b + 2 h + a.

Integers of 4 bits are kept plus 8, those of 8 bits as two's complement, FP8 as its byte, FP4 as its
4 bits. Beyond N and K all bits are zero. Scales, zeros and offsets lie as in `QuantisedWeights`.
"""

from __future__ import annotations

from dataclasses import replace
from enum import IntEnum
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.config.storage import TABLES
from trtspec.ops import native  # noqa: F401  registers the op
from trtspec.ops.linear import linear, pack_linear
from trtspec.ops.linear import swiglu as gated
from trtspec.ops.linear_quantised import (
    QuantisedWeights,
    dequantise,
    pack_floats,
    pack_values,
)

FEW_ROWS = 64
"""Of more rows, products are those of torch."""
TILE = 16
"""Outputs of a tile."""
_STAGE = 64


class Values(IntEnum):
    """How the values of a weight are kept, as ``WeightValues`` of ``plugins/kernels.hpp``: in rows
    of floats, or packed."""

    rows = 0
    int8 = 1
    int4 = 2
    e4m3 = 3
    e2m1 = 4

    @property
    def bits(self) -> int:
        """Of a packed value."""
        return 4 if self in (Values.int4, Values.e2m1) else 8


def packed_shape(out_features: int, in_features: int, bits: int) -> tuple[int, ...]:
    """The shape of packed weights."""
    return (-(-out_features // TILE), -(-in_features // _STAGE), bits // 4, 32, 16)


def pack_tiles(patterns: Tensor, bits: int) -> Tensor:
    """Pack the bit patterns [N, K] uint8 of values, see the module."""
    rows, depth = patterns.shape
    padded = F.pad(patterns, (0, -depth % _STAGE, 0, -rows % TILE))
    # tile, a, row, stage, part, step of it, b, quad, h
    parts = padded.view(-1, 2, 8, padded.shape[1] // _STAGE, 2, 2, 2, 4, 2)
    if bits == 4:
        pairs = parts.permute(0, 3, 2, 7, 4, 5, 8, 6, 1)
        found = pairs[..., 0] | pairs[..., 1] << 4
    else:
        found = parts.permute(0, 3, 4, 2, 7, 5, 6, 8, 1)
    return found.reshape(packed_shape(rows, depth, bits))


def unpack_tiles(packed: Tensor, bits: int, out_features: int, in_features: int) -> Tensor:
    """The patterns [N, K] uint8 that `pack_tiles` packed."""
    if bits == 4:
        halves = torch.stack([packed & 15, packed >> 4], dim=-1)
        found = halves.view(*packed.shape[:2], 8, 4, 4, 2, 2, 2)
        parts = found.permute(0, 7, 2, 1, 4, 6, 3, 5)
    else:
        found = packed.view(*packed.shape[:3], 8, 4, 2, 2, 2, 2)
        parts = found.permute(0, 8, 3, 1, 2, 5, 6, 4, 7)
    whole = parts.reshape(packed.shape[0] * TILE, packed.shape[1] * _STAGE)
    return whole[:out_features, :in_features]


def few_row_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out_features: int,
    out_dtype: torch.dtype | None = None,
    *,
    values: Values = Values.rows,
    group_size: int = 0,
    scales: Tensor | None = None,
    zeros: Tensor | None = None,
    offsets: Tensor | None = None,
    swiglu: bool = False,
    residual: Tensor | None = None,
) -> Tensor:
    """residual + (x W^T + bias).

    Of at most `FEW_ROWS` rows in bfloat16 or float16, with K a multiple of 8, sums are float32 in
    an order that depends on N and K only: the bits of a row depend on its rows of x and of the
    residual, and on W, not on how many rows there are. All others are torch's products, of packed
    weights with the dequantised weight, rounded to the dtype of x. On CPUs this is the reference.

    Args:
        x: [T, K]; float32 with rows of floats only.
        weight: [N, K] of the dtype of x, or as `pack_tiles` packs it.
        bias: [N] of the dtype of x, or None.
        out_features: N.
        out_dtype: float32, bfloat16 or float16; dtype of x if None.
        values: what ``weight`` holds; e2m1 stands for twice its values.
        group_size, scales, zeros, offsets: of packed weights, see `QuantisedWeights`.
        swiglu: whether of each 32 outputs the last 16 are multiplied by the SiLU of the first, in
            float32; N is a multiple of 32.
        residual: as the result, or None.
    Returns:
        [T, N] of out_dtype, with ``swiglu`` [T, N / 2].
    Raises:
        RuntimeError: shapes or dtypes do not fit.
    """
    result: Tensor = torch.ops.trtspec.few_row_linear(
        x,
        weight,
        bias,
        out_features,
        int(values),
        group_size,
        out_dtype,
        scales=scales,
        zeros=zeros,
        offsets=offsets,
        swiglu=swiglu,
        residual=residual,
    )
    return result


def woven(rows: Tensor) -> Tensor:
    """Rows [N, ...] of gates, followed by those that they are for, as ``swiglu`` takes outputs: 16
    of each in turn."""
    return rows.view(2, -1, TILE, *rows.shape[1:]).transpose(0, 1).flatten(0, 2)


def unwoven(rows: Tensor) -> Tensor:
    """The rows that `woven` ordered."""
    return rows.reshape(-1, 2, TILE, *rows.shape[1:]).transpose(0, 1).flatten(0, 2)


def in_blocks(
    weights: QuantisedWeights, values: Values, out_features: int, in_features: int
) -> QuantisedWeights:
    """The same weights as the ops for CPUs take them."""
    patterns = unpack_tiles(weights.packed, values.bits, out_features, in_features)
    if values is Values.e4m3:
        packed = pack_floats(patterns.view(torch.float8_e4m3fn))
    else:
        signed = patterns.view(torch.int8)
        packed = pack_values(signed - 8 * (values.bits == 4), values.bits)
    table = torch.tensor(TABLES["float4"], dtype=torch.int8) if values is Values.e2m1 else None
    return replace(weights, packed=packed, table=table)


def few_row_linear_reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out_features: int,
    values: int,
    group_size: int,
    out_dtype: torch.dtype | None = None,
    *,
    scales: Tensor | None = None,
    zeros: Tensor | None = None,
    offsets: Tensor | None = None,
    swiglu: bool = False,
    residual: Tensor | None = None,
) -> Tensor:
    """``few_row_linear`` by `linear` in float32, as the op is called on CPUs; the same but for the
    order of the additions, whatever the number of rows."""
    wide = weight.float()
    if values != Values.rows:
        assert scales is not None
        kind = Values(values)
        packed = QuantisedWeights(weight, scales, zeros, offsets, e4m3=kind is Values.e4m3)
        blocks = in_blocks(packed, kind, out_features, x.shape[1])
        wide = dequantise(blocks, kind.bits, group_size, out_features, x.shape[1])
    wide_bias = None if bias is None else bias.float()
    y = linear(x.float(), pack_linear(wide), wide_bias, out_features)
    if swiglu:
        y = gated(unwoven(y.t()).t())
    y = y.to(out_dtype or x.dtype)
    return y if residual is None else residual + y


torch.library.impl("trtspec::few_row_linear", "CPU")(few_row_linear_reference)


@torch.library.register_fake("trtspec::few_row_linear")  # type: ignore[untyped-decorator]
def _few_row_linear_fake(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out_features: int,
    values: int,
    group_size: int,
    out_dtype: torch.dtype | None = None,
    *,
    swiglu: bool = False,
    **_: Any,
) -> Tensor:
    width = out_features // 2 if swiglu else out_features
    return x.new_empty((x.shape[0], width), dtype=out_dtype or x.dtype)
