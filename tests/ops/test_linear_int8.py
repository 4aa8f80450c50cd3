"""linear_int8 against its reference, and the promise that no other row changes a row's bits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from trtspec.errors import ConfigError
from trtspec.ops.linear_int8 import (
    dequantize_int8,
    linear_int8,
    linear_int8_reference,
    pack_linear_int8,
    quantize_int8,
)

from .each_isa import each_isa

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
GROUPS = [0, 32, 64, 128]


isa = each_isa("generic", "avx2", "avx512", "avx512_bf16", "amx")


def make(
    rows: int, depth: int, width: int, dtype: torch.dtype, group: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, packed weights, their scales and a bias; every int8 value is among the weights."""
    noise = torch.Generator().manual_seed(rows * depth)
    x = torch.randn(rows, depth, generator=noise).to(dtype)
    values = torch.randint(-128, 128, (width, depth), generator=noise, dtype=torch.int8)
    groups = -(-depth // group) if group else 1
    scales = (torch.rand(width, groups, generator=noise) + 0.5) / (64 * depth**0.5)
    bias = torch.randn(width, generator=noise).to(dtype)
    return x, *pack_linear_int8(values, scales), bias


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", GROUPS)
def test_equals_reference(isa: str, dtype: torch.dtype, group: int) -> None:
    """Rows in one block and in several, of whole panels and of halves; odd sizes."""
    for rows, depth, width in (
        *((rows, 300, 70) for rows in (0, 1, 2, 3, 6, 7, 8, 12, 13, 60)),
        (1, 1, 1), (5, 33, 65), (9, 33, 130), (20, 129, 64), (8, 640, 64),
    ):  # fmt: skip
        x, packed, scales, bias = make(rows, depth, width, dtype, group)
        for b, out_dtype in ((None, torch.float32), (bias, None)):
            arguments = (x, packed, scales, b, width, group, out_dtype)
            got, want = linear_int8(*arguments), linear_int8_reference(*arguments)
            assert got.dtype == want.dtype
            tolerance = TOLERANCE[got.dtype]
            torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_stands_around_equals_reference(isa: str, dtype: torch.dtype) -> None:
    for rows, fused in (
        (1, {"norm": torch.linspace(-1, 2, 300).to(dtype), "eps": 1e-5}),
        (12, {"gated": True, "residual": torch.ones(12, 70, dtype=dtype)}),
    ):
        x = make(rows, 600, 70, dtype, 64)[0]
        _, packed, scales, bias = make(rows, 300, 70, dtype, 64)
        inputs = x if "gated" in fused else x[:, :300]
        arguments = (inputs, packed, scales, bias, 70, 64)
        tolerance = 2 * TOLERANCE[dtype]
        torch.testing.assert_close(
            linear_int8(*arguments, **fused),
            linear_int8_reference(*arguments, **fused),
            rtol=tolerance,
            atol=tolerance,
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("group", "depth"), [(0, 518), (64, 518), (64, 544)])
def test_rows_and_threads_do_not_change_bits(
    isa: str, dtype: torch.dtype, group: int, depth: int
) -> None:
    x, packed, scales, bias = make(213, depth, 1200, dtype, group)
    whole = linear_int8(x, packed, scales, bias, 1200, group)
    threads = torch.get_num_threads()
    try:
        for number, count in enumerate((1, 2, 3, 4, 6, 7, 8, 11, 12, 13, 31, 100)):
            torch.set_num_threads(1 + number % 3)
            for first in (0, 213 - count):
                part = linear_int8(x[first : first + count], packed, scales, bias, 1200, group)
                assert torch.equal(part, whole[first : first + count])
    finally:
        torch.set_num_threads(threads)


def test_fused_instruction_sets_agree() -> None:
    arguments = (*make(9, 700, 150, torch.float16, 32), 150, 32)
    before = torch.ops.trtspec._set_isa("avx2")
    try:
        if torch.ops.trtspec._get_isa() != "avx2":
            pytest.skip("this processor has no AVX2")
        with_avx2 = linear_int8(*arguments)
    finally:
        torch.ops.trtspec._set_isa(before)
    assert torch.equal(with_avx2, linear_int8(*arguments))


@pytest.mark.parametrize("group", GROUPS)
def test_quantize(group: int) -> None:
    """Off by half a step at most, of the scale of the largest weight in the group."""
    weight = torch.randn(70, 200, generator=torch.Generator().manual_seed(0)) * 3
    weight[3] = 0
    weight[4, :64] = 1e-42
    values, scales = quantize_int8(weight, group)
    assert values.dtype == torch.int8 and values.abs().max() == 127
    assert scales.shape == (70, -(-200 // group) if group else 1)
    error = (dequantize_int8(values, scales, group) - weight).abs()
    width = group or 200
    assert (error[:, :width] <= 0.5001 * scales[:, :1]).all()
    assert not values[3].any()
    again, same = quantize_int8(dequantize_int8(values, scales, group), group)
    assert torch.equal(again, values)
    whole = [i for i in range(70) if i != 4]
    torch.testing.assert_close(same[whole], scales[whole], rtol=1e-6, atol=0)
    with pytest.raises(ConfigError, match="weight_group_size=16 is not one of 0, 32"):
        quantize_int8(weight, 16)


def test_refuses_what_does_not_fit() -> None:
    x, packed, scales, bias = make(2, 64, 70, torch.float32, 32)
    for arguments, message in (
        ((x, packed.short(), scales, bias, 70, 32), "packed must be"),
        ((x, packed, scales[:, :1], bias, 70, 32), "scales must have shape"),
        ((x, packed, scales, bias, 70, 0), "scales must have shape"),
        ((x, packed, scales.half(), bias, 70, 32), "scales must be"),
        ((x, packed, scales, bias[:3], 70, 32), "bias must have shape"),
        ((x, packed, scales, bias, 70, 16), "group_size must be 0, 32, 64 or 128, got 16"),
        ((x[:, :0], packed[:, :0], scales, bias, 70, 0), "x must have input features"),
    ):
        with pytest.raises(RuntimeError, match=message):
            linear_int8(*arguments)


def test_opcheck() -> None:
    x, packed, scales, bias = make(3, 32, 70, torch.bfloat16, 32)
    arguments = (x, packed, scales, bias, 70, 32, torch.float32)
    torch.library.opcheck(torch.ops.trtspec.linear_int8.default, arguments)
