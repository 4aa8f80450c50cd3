"""linear against its reference, and the promise that no other row changes a row's bits."""

from __future__ import annotations

import pytest
import torch

from trtspec.errors import ConfigError
from trtspec.ops import linear, linear_reference, pack_linear
from trtspec.ops.linear import unpack_linear

from .each_isa import each_isa

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


isa = each_isa("generic", "avx2", "avx512", "avx512_bf16")


def make(
    rows: int, depth: int, width: int, dtype: torch.dtype, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, depth, generator=generator).to(dtype)
    weight = (torch.randn(width, depth, generator=generator) / depth**0.5).to(dtype)
    bias = torch.randn(width, generator=generator).to(dtype)
    return x, weight, bias


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 5, 6, 7, 16, 25, 60])
@pytest.mark.parametrize(("depth", "width"), [(1, 1), (33, 65), (300, 200), (640, 64)])
def test_equals_reference(isa: str, dtype: torch.dtype, rows: int, depth: int, width: int) -> None:
    x, weight, bias = make(rows, depth, width, dtype)
    packed = pack_linear(weight)
    for b in (None, bias):
        for out_dtype in (None, torch.float32):
            got = linear(x, packed, b, width, out_dtype)
            want = linear_reference(x, packed, b, width, out_dtype)
            assert got.dtype == want.dtype
            torch.testing.assert_close(
                got, want, rtol=TOLERANCE[got.dtype], atol=TOLERANCE[got.dtype]
            )


def test_pack_and_unpack() -> None:
    _, weight, _ = make(1, 40, 130, torch.float32)
    packed = pack_linear(weight)
    assert packed.shape == (3, 40, 64)
    assert packed[1, 7, 5] == weight[69, 7]
    assert not packed[2, :, 2:].any()
    assert torch.equal(unpack_linear(packed, 130), weight)
    with pytest.raises(ConfigError):
        pack_linear(weight[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_do_not_change_each_other(isa: str, dtype: torch.dtype) -> None:
    x, weight, bias = make(213, 517, 200, dtype)
    packed = pack_linear(weight)
    whole = linear(x, packed, bias, 200)
    for count in (1, 2, 3, 4, 6, 8, 13, 31):
        for first in (0, 100, 213 - count):
            part = linear(x[first : first + count], packed, bias, 200)
            assert torch.equal(part, whole[first : first + count])


def test_threads_do_not_change_bits() -> None:
    x, weight, bias = make(100, 700, 500, torch.bfloat16)
    packed = pack_linear(weight)
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(linear(x, packed, bias, 500))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_fused_instruction_sets_agree() -> None:
    x, weight, bias = make(9, 700, 150, torch.float16)
    packed = pack_linear(weight)
    before = torch.ops.trtspec._set_isa("avx2")
    try:
        if torch.ops.trtspec._get_isa() != "avx2":
            pytest.skip("this processor has no AVX2")
        with_avx2 = linear(x, packed, bias, 150)
    finally:
        torch.ops.trtspec._set_isa(before)
    assert torch.equal(with_avx2, linear(x, packed, bias, 150))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_conversions_are_torchs(isa: str, dtype: torch.dtype) -> None:
    """Every 16-bit value comes in, and floats of all sizes go out, exactly as torch converts."""
    bits = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    values = bits.view(dtype)
    one = pack_linear(torch.ones(1, 1, dtype=dtype))
    got = linear(values[:, None], one, None, 1, torch.float32)[:, 0]
    finite = values.isfinite()
    assert torch.equal(got[finite], values[finite].float())
    assert torch.equal(got.isnan(), values.isnan())
    generator = torch.Generator().manual_seed(0)
    exponents = torch.randint(-30, 18, (20000,), generator=generator)
    floats = torch.randn(20000, generator=generator) * 2.0**exponents
    packed = pack_linear(torch.ones(1, 1))
    got = linear(floats[:, None], packed, None, 1, dtype)[:, 0]
    assert torch.equal(got, floats.to(dtype))
    wide = linear(torch.ones(1, 1), pack_linear(floats[:, None]), None, 20000, dtype)[0]
    assert torch.equal(wide, floats.to(dtype))


def test_refuses_what_does_not_fit() -> None:
    x, weight, bias = make(2, 32, 70, torch.float32)
    packed = pack_linear(weight)
    with pytest.raises(RuntimeError, match="packed must have shape"):
        linear(x, packed, bias, 150)
    with pytest.raises(RuntimeError, match="packed must be"):
        linear(x.bfloat16(), packed, None, 70)
    with pytest.raises(RuntimeError, match="bias must have shape"):
        linear(x, packed, bias[:3], 70)
    with pytest.raises(RuntimeError, match="out_dtype must be"):
        linear(x, packed, None, 70, torch.int64)


def test_opcheck() -> None:
    x, weight, bias = make(3, 32, 70, torch.bfloat16)
    packed = pack_linear(weight)
    torch.library.opcheck(torch.ops.trtspec.linear.default, (x, packed, bias, 70, torch.float32))
