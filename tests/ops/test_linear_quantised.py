"""linear_quantised against its reference; and no other row changes a row's bits."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from trtspec.ops.linear_quantised import (
    QuantisedWeights,
    linear_quantised,
    linear_quantised_reference,
    num_groups,
    pack_floats,
    pack_groups,
    pack_values,
)

from .each_isa import each_isa

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
CASES = [(4, 32, "float16", "offsets"), (4, 0, "float32", "zeros"), (8, 16, "float32", "none")]
CASES += [(8, 256, "float16", "zeros"), (8, 0, "float32", "none"), (4, 16, "float32", "table")]
FP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Twice the values of OCP's E2M1, in the order of their codes."""

isa = each_isa("generic", "avx2", "avx_vnni", "avx512", "avx512_bf16", "amx")


def make(
    rows: int, depth: int, width: int, case: tuple[int, int, str, str], dtype: torch.dtype
) -> tuple[Any, ...]:
    """Arguments of the op but input_bits; all codes are among the weights, and one group of
    inputs is zero, one far larger than the others."""
    bits, group, scale_dtype, kind = case
    noise = torch.Generator().manual_seed(rows * depth + bits)
    x = torch.randn(rows, depth, generator=noise)
    x[1:2, :32], x[2:3, 32:64] = 0, 1e4 * x[2:3, 32:64]
    half, sizes = 1 << bits - 1, (width, num_groups(depth, group))
    codes = torch.randint(-half, half, (width, depth), generator=noise, dtype=torch.int8)
    of: torch.dtype = getattr(torch, scale_dtype)
    scales = (torch.rand(sizes, generator=noise) - 0.3) / (half * depth**0.5)
    zeros = torch.randint(-half, half, sizes, generator=noise, dtype=torch.int8)
    offsets = torch.randn(sizes, generator=noise) / depth**0.5
    weights = QuantisedWeights(
        pack_values(codes, bits),
        pack_groups(scales.to(of)),
        pack_groups(zeros) if kind == "zeros" else None,
        pack_groups(offsets.to(of)) if kind == "offsets" else None,
        table=torch.tensor(FP4, dtype=torch.int8) if kind == "table" else None,
    )
    bias = torch.randn(width, generator=noise).to(dtype)
    return x.to(dtype), weights, bias, width, bits, group


def close(got: Tensor, want: Tensor) -> None:
    assert got.dtype == want.dtype
    tolerance = TOLERANCE[got.dtype]
    scale = want.float().abs().amax(1, keepdim=True) + 1
    torch.testing.assert_close(got / scale, want / scale, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("input_bits", [0, 8, 16])
@pytest.mark.parametrize("case", CASES)
def test_equals_reference(isa: str, case: tuple[int, int, str, str], input_bits: int) -> None:
    for rows, depth, width in (
        *((rows, 300, 70) for rows in (0, 1, 2, 5, 6, 12, 13, 25, 97)),
        (1, 1, 1), (5, 33, 65), (9, 130, 16), (3, 768, 200),
    ):  # fmt: skip
        dtype = (torch.float32, torch.bfloat16, torch.float16)[rows % 3]
        arguments = make(rows, depth, width, case, dtype)
        close(
            linear_quantised(*arguments, input_bits),
            linear_quantised_reference(*arguments, input_bits),
        )


def test_what_stands_around_equals_reference(isa: str) -> None:
    for case in CASES:
        x, *rest = make(12, 300, 70, case, torch.float32)
        norm, residual = torch.linspace(-1, 2, 300), torch.ones(12, 70)
        around: list[tuple[Tensor, dict[str, Any]]] = [
            (x, {"norm": norm, "eps": 1e-5}),
            (torch.cat([x, x.flip(0)], 1), {"gated": True, "residual": residual}),
        ]
        for inputs, fused in around:
            close(
                linear_quantised(inputs, *rest, 0, **fused),
                linear_quantised_reference(inputs, *rest, 0, **fused),
            )
            rounded = linear_quantised(inputs, *rest, 8, **fused)
            want = linear_quantised_reference(inputs, *rest, 8, **fused)
            # A last bit of norm or gate may make another code of an input.
            assert (rounded - want).norm() < 5e-3 * want.norm()


@pytest.mark.parametrize("input_bits", [0, 8, 16])
@pytest.mark.parametrize("case", CASES[:3])
def test_rows_and_threads_do_not_change_bits(
    isa: str, case: tuple[int, int, str, str], input_bits: int
) -> None:
    x, *rest = make(213, 518, 1200, case, torch.bfloat16)
    norm = torch.ones(518, dtype=torch.bfloat16)
    whole = linear_quantised(x, *rest, input_bits, norm=norm)
    threads = torch.get_num_threads()
    try:
        for number, count in enumerate((1, 2, 4, 5, 6, 11, 12, 13, 31, 100)):
            torch.set_num_threads(1 + number % 3)
            for first in (0, 213 - count):
                rows = x[first : first + count]
                part = linear_quantised(rows, *rest, input_bits, norm=norm)
                assert torch.equal(part, whole[first : first + count])
    finally:
        torch.set_num_threads(threads)


def test_instruction_sets_agree(isa: str) -> None:
    """All that have fused multiply-adds: the sums in between are whole numbers."""
    if isa == "generic":
        return
    for case, input_bits in product(CASES, (8, 16)):
        arguments = make(9, 700, 150, case, torch.float16)
        found = linear_quantised(*arguments, input_bits)
        before = torch.ops.trtspec._set_isa("avx2")
        with_avx2 = linear_quantised(*arguments, input_bits)
        torch.ops.trtspec._set_isa(before)
        assert torch.equal(found, with_avx2)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [32, 64, 0])
def test_the_largest_sums_fit(isa: str, bits: int, group: int) -> None:
    """All codes the largest or the smallest, all inputs alike."""
    depth, half = 270, 1 << bits - 1
    codes = torch.tensor([half - 1, -half], dtype=torch.int8).repeat(10)[:, None].repeat(1, depth)
    scales = torch.ones(20, num_groups(depth, group))
    weights = QuantisedWeights(pack_values(codes, bits), pack_groups(scales))
    x = torch.tensor([1.0, -1.0, 3.0])[:, None].repeat(1, depth)
    for input_bits in (8, 16):
        found = linear_quantised(x, weights, None, 20, bits, group, input_bits)
        torch.testing.assert_close(found, x @ codes.float().T, rtol=1e-6, atol=0)


def test_what_is_not_finite_stays_so(isa: str) -> None:
    for value, input_bits in product((torch.nan, torch.inf), (8, 16)):
        x, *rest = make(3, 300, 70, CASES[0], torch.float32)
        x[1, 7] = value
        found = linear_quantised(x, *rest, input_bits)
        assert not found[1].isfinite().any() and found[::2].isfinite().all()


def test_refuses_what_does_not_fit() -> None:
    x, weights, bias, width, bits, group = make(2, 64, 70, CASES[0], torch.float32)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"packed": weights.packed.char()}, "packed must be"),
        ({"bits": 5}, "bits must be 4 or 8, got 5"),
        ({"bits": 8}, "packed must have shape"),
        ({"group_size": 64}, "scales must have shape"),
        ({"group_size": 48}, "group_size must be 0, 16, 32, 64, 128 or 256, got 48"),
        ({"scales": weights.scales.double(), "offsets": None}, "scales"),
        ({"offsets": weights.scales.bfloat16()}, "offsets must be"),
        ({"input_bits": 4}, "input_bits must be 0, 8 or 16, got 4"),
        ({"e4m3": True}, "floats of 8 bits are multiplied by floats, got bits = 4"),
        ({"zeros": weights.scales}, "zeros or offsets, not both"),
        ({"zeros": weights.scales, "offsets": None}, "zeros must be"),
        ({"offsets": weights.scales[1:]}, "offsets must have shape"),
        ({"x": x[:, :0]}, "x must have input features"),
        ({"table": torch.zeros(16)}, "table must be"),
        ({"table": weights.packed.new_zeros(8)}, "table must have shape"),
    ]
    given = {"x": x, "packed": weights.packed, "scales": weights.scales, "zeros": None}
    given |= {"offsets": weights.offsets, "bias": bias, "out_features": width, "bits": bits}
    given |= {"group_size": group, "input_bits": 8}
    for changed, message in wrong:
        with pytest.raises(RuntimeError, match=message):
            torch.ops.trtspec.linear_quantised(**{**given, **changed})


def test_a_table_is_looked_up(isa: str) -> None:
    """Of values that use all of their bits, as NF4's do, against codes of 8 bits with the same."""
    table = torch.tensor([*range(-128, 0, 17), *range(1, 128, 17)], dtype=torch.int8)
    places = torch.randint(16, (70, 96), generator=torch.Generator().manual_seed(1))
    scales = pack_groups(torch.full((70, 3), 0.01))
    looked_up = QuantisedWeights(pack_values((places - 8).char(), 4), scales, table=table)
    whole = QuantisedWeights(pack_values(table[places], 8), scales)
    x = torch.randn(7, 96, generator=torch.Generator().manual_seed(2))
    for input_bits in (0, 8, 16):
        found = linear_quantised(x, looked_up, None, 70, 4, 32, input_bits)
        assert torch.equal(found, linear_quantised(x, whole, None, 70, 8, 32, input_bits))


@pytest.mark.parametrize(("group", "scale_dtype"), [(0, "float32"), (128, "bfloat16")])
def test_floats_of_8_bits(isa: str, group: int, scale_dtype: str) -> None:
    """Every value that there is, denormal ones included, is multiplied as it is."""
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    finite = every.view(torch.uint8)[every.float().isfinite()]
    values = finite.repeat(80)[: 70 * 270].view(70, 270).view(torch.float8_e4m3fn)
    noise = torch.Generator().manual_seed(1)
    scales = torch.rand(70, num_groups(270, group), generator=noise).to(getattr(torch, scale_dtype))
    one = QuantisedWeights(pack_floats(values), pack_groups(torch.ones_like(scales)), e4m3=True)
    assert torch.equal(
        linear_quantised(torch.eye(270), one, None, 70, 8, group, 0), values.float().T
    )
    weights = replace(one, scales=pack_groups(scales))
    x = torch.randn(13, 270, generator=noise)
    found = linear_quantised(x, weights, None, 70, 8, group, 0)
    close(found, linear_quantised_reference(x, weights, None, 70, 8, group, 0))
    for row in range(13):
        alone = linear_quantised(x[row : row + 1], weights, None, 70, 8, group, 0)
        assert torch.equal(alone[0], found[row])


def test_opcheck() -> None:
    x, w, bias, width, bits, group = make(3, 64, 70, CASES[0], torch.bfloat16)
    arguments = (x, w.packed, w.scales, None, w.offsets, bias, width, bits, group, 8)
    torch.library.opcheck(torch.ops.trtspec.linear_quantised.default, arguments)
