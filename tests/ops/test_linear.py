"""linear against its reference, and the promise that no other row changes a row's bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trtspec.errors import ConfigError
from trtspec.ops import linear, linear_reference, pack_linear
from trtspec.ops.linear import packed_rows, rms_norm, swiglu, unpack_linear

from .each_isa import each_isa

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


isa = each_isa("generic", "avx2", "avx512", "avx512_bf16", "amx")


def make(
    rows: int, depth: int, width: int, dtype: torch.dtype, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, depth, generator=generator).to(dtype)
    weight = (torch.randn(width, depth, generator=generator) / depth**0.5).to(dtype)
    bias = torch.randn(width, generator=generator).to(dtype)
    return x, weight, bias


def surrounded(
    rows: int, depth: int, width: int, dtype: torch.dtype, around: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]:
    """x, a packed weight, a bias and the arguments for what stands around the product."""
    x, weight, bias = make(rows, 2 * depth if "gated" in around else depth, width, dtype)
    fused: dict[str, Any] = {}
    if "norm" in around:
        fused |= {"norm": torch.linspace(-1, 2, depth).to(dtype), "eps": 1e-5}
    if "gated" in around:
        fused["gated"] = True
    if "residual" in around:
        fused["residual"] = make(rows, width, 1, dtype, seed=1)[0]
    return x, pack_linear(weight[:, :depth].contiguous()), bias, fused


SHAPES = [(1, 1), (33, 65), (300, 200), (640, 64)]
"""Of a weight: depth and width."""
ROWS = (60, 25, 16, 7, 6, 5, 3, 2, 1, 0)


def assert_near(got: torch.Tensor, want: torch.Tensor, tolerance: float, what: object) -> None:
    assert got.dtype == want.dtype
    torch.testing.assert_close(
        got, want, rtol=tolerance, atol=tolerance, msg=lambda text: f"{what}: {text}"
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("depth", "width"), SHAPES)
def test_equals_reference(isa: str, dtype: torch.dtype, depth: int, width: int) -> None:
    """The reference of the first rows is the first rows of the reference."""
    x, weight, bias = make(max(ROWS), depth, width, dtype)
    packed = pack_linear(weight)
    for b in (None, bias):
        for out_dtype in (None, torch.float32):
            want = linear_reference(x, packed, b, width, out_dtype)
            for rows in ROWS:
                got = linear(x[:rows], packed, b, width, out_dtype)
                assert_near(got, want[:rows], TOLERANCE[got.dtype], f"{rows} rows")


@pytest.mark.parametrize("around", ["norm", "gated", "residual", "norm+residual", "gated+residual"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("depth", "width"), SHAPES)
def test_what_stands_around_equals_reference(
    isa: str, dtype: torch.dtype, depth: int, width: int, around: str
) -> None:
    x, packed, bias, fused = surrounded(max(ROWS), depth, width, dtype, around)
    for b, out_dtype in ((None, None), (bias, None), (bias, torch.float32)):
        if "residual" in fused:
            fused["residual"] = fused["residual"].to(out_dtype or dtype)
        want = linear_reference(x, packed, b, width, out_dtype, **fused)
        for rows in (60, 7, 2, 1, 0):
            own = dict(fused)
            if "residual" in own:
                own["residual"] = own["residual"][:rows]
            got = linear(x[:rows], packed, b, width, out_dtype, **own)
            # What is rounded before the product may differ in a bit.
            assert_near(got, want[:rows], 2 * TOLERANCE[dtype], f"{rows} rows")


def test_a_norm_and_a_gate_round_as_torch_does(isa: str) -> None:
    """Through a matrix that only copies: the same bits, but where a float's last one decides."""
    x = torch.randn(40, 2 * 96, generator=torch.Generator().manual_seed(3)).bfloat16()
    weight = torch.randn(96, generator=torch.Generator().manual_seed(4)).bfloat16()
    one = pack_linear(torch.eye(96).bfloat16())
    normed = linear(x[:, :96], one, None, 96, norm=weight, eps=1e-5)
    gated = linear(x, one, None, 96, gated=True)
    for got, want in ((normed, rms_norm(x[:, :96], weight, 1e-5)), (gated, swiglu(x))):
        assert (got != want).float().mean() < 0.01
        torch.testing.assert_close(got, want, rtol=2**-7, atol=0)


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
@pytest.mark.parametrize("depth", [1, 40, 41])
def test_packed_weights_come_back(dtype: torch.dtype, depth: int) -> None:
    weight = (100 * make(1, depth, 130, torch.float32)[1]).to(dtype)
    packed = pack_linear(weight)
    assert packed.shape == (3, depth, 64)
    assert packed.is_contiguous()
    assert torch.equal(unpack_linear(packed, 130), weight)
    ids = torch.tensor([[129, 0], [63, 64]])
    assert torch.equal(packed_rows(packed, ids), weight[ids])


def test_bfloat16_is_packed_in_pairs() -> None:
    _, weight, _ = make(1, 40, 130, torch.bfloat16)
    packed = pack_linear(weight).view(3, 20, 64, 2)
    assert torch.equal(packed[1, 3, 5], weight[69, 6:8])
    assert not packed[2, :, 2:].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("depth", [517, 544])
def test_rows_do_not_change_each_other(isa: str, dtype: torch.dtype, depth: int) -> None:
    x, weight, bias = make(213, depth, 200, dtype)
    packed = pack_linear(weight)
    whole = linear(x, packed, bias, 200)
    for count in (1, 2, 3, 4, 6, 8, 13, 31):
        for first in (0, 100, 213 - count):
            part = linear(x[first : first + count], packed, bias, 200)
            assert torch.equal(part, whole[first : first + count])


@pytest.mark.parametrize("around", ["norm", "gated+residual"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_and_threads_change_nothing_around(isa: str, dtype: torch.dtype, around: str) -> None:
    x, packed, bias, fused = surrounded(213, 517, 200, dtype, around)
    whole = linear(x, packed, bias, 200, **fused)
    threads = torch.get_num_threads()
    try:
        for number, count in enumerate((1, 2, 3, 6, 31, 100)):
            torch.set_num_threads(1 + number % 3)
            rows = slice(213 - count, 213)
            own = {**fused, "residual": fused["residual"][rows]} if "residual" in fused else fused
            part = linear(x[rows], packed, bias, 200, **own)
            assert torch.equal(part, whole[rows])
    finally:
        torch.set_num_threads(threads)


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
    with pytest.raises(RuntimeError, match="x must have shape"):
        linear(x, packed, None, 70, gated=True)
    with pytest.raises(RuntimeError, match="norm must have shape"):
        linear(x, packed, None, 70, norm=torch.ones(31))
    with pytest.raises(RuntimeError, match="residual must be"):
        linear(x, packed, None, 70, residual=torch.ones(2, 70).half())
    with pytest.raises(RuntimeError, match="gated or normed"):
        linear(x, packed, None, 70, norm=torch.ones(32), gated=True)


def test_opcheck() -> None:
    x, weight, bias = make(3, 32, 70, torch.bfloat16)
    packed = pack_linear(weight)
    op = torch.ops.trtspec.linear.default
    torch.library.opcheck(op, (x, packed, bias, 70, torch.float32))
    residual = torch.ones(3, 70).bfloat16()
    torch.library.opcheck(
        op, (x, packed, None, 70), {"norm": bias[:32], "eps": 1e-5, "residual": residual}
    )
