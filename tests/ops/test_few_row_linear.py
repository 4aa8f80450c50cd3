"""few_row_linear: its packed weights, and its reference. The kernels are tested in
plugins/tests/test_few_row_emulated.cpp and tests/gpu."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from trtspec.ops.few_row_linear import (
    FEW_ROWS,
    TILE,
    Values,
    few_row_linear,
    pack_tiles,
    packed_shape,
    unpack_tiles,
)
from trtspec.ops.linear import swiglu
from trtspec.ops.linear_quantised import num_groups, pack_groups, spread


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("bits", [4, 8])
def test_values_lie_where_lanes_read_them(bits: int) -> None:
    patterns = torch.randint(1 << bits, (40, 200), dtype=torch.uint8)
    packed = pack_tiles(patterns, bits)
    assert packed.shape == packed_shape(40, 200, bits) == (3, 4, bits // 4, 32, 16)
    assert torch.equal(unpack_tiles(packed, bits, 40, 200), patterns)
    for n, k in ((0, 0), (1, 3), (9, 8), (23, 130), (39, 199)):
        lane, a, b, h = 4 * (n % 8) + k % 8 // 2, n % 16 // 8, k % 16 // 8, k % 2
        tile, stage, step = n // 16, k // 64, k % 64 // 16
        if bits == 4:
            byte = packed[tile, stage, 0, lane, 4 * step + 2 * h + b]
            assert int(byte) >> 4 * a & 15 == int(patterns[n, k])
        else:
            byte = packed[tile, stage, step // 2, lane, step % 2 * 8 + 4 * b + 2 * h + a]
            assert int(byte) == int(patterns[n, k])


_BITS = torch.Generator().manual_seed(0)
E4M3 = torch.randint(127, (64, 200), generator=_BITS).byte()
E4M3 |= torch.randint(2, (64, 200), generator=_BITS).byte() << 7
E2M1 = torch.randint(16, (64, 200), generator=_BITS).byte()
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


@pytest.mark.parametrize("values", [Values.int8, Values.int4, Values.e4m3, Values.e2m1])
@pytest.mark.parametrize("beside", ["zeros", "offsets", None])
def test_packed_weights(values: Values, beside: str | None) -> None:
    patterns = E2M1 if values.bits == 4 else E4M3
    exact = {
        Values.int8: patterns.view(torch.int8).float(),
        Values.int4: patterns.float() - 8,
        Values.e4m3: patterns.view(torch.float8_e4m3fn).float(),
        Values.e2m1: 2 * FP4[patterns.int() % 16],
    }[values]
    n, k, size = 64, 200, 32
    scales = random(n, num_groups(k, size), seed=1).abs()
    extra = {"zeros": scales.mul(3).to(torch.int8), "offsets": random(*scales.shape, seed=2)}
    weight = exact * spread(scales, k, size)
    if beside == "zeros":
        weight = (exact - spread(extra["zeros"].float(), k, size)) * spread(scales, k, size)
    elif beside == "offsets":
        weight = weight + spread(extra["offsets"], k, size)
    x, bias, residual = random(5, k, seed=3), random(n, seed=4), random(5, n, seed=5)
    found = few_row_linear(
        x,
        pack_tiles(patterns, values.bits),
        bias,
        n,
        values=values,
        group_size=size,
        scales=pack_groups(scales),
        residual=residual,
        **({beside: pack_groups(extra[beside])} if beside else {}),
    )
    torch.testing.assert_close(found, residual + (x @ weight.T + bias), rtol=1e-4, atol=2e-3)


def test_swiglu_of_interleaved_outputs() -> None:
    """Of each 32 outputs, the first 16 are gates of the last."""
    x, gate, up = random(3, 24), random(32, 24, seed=1), random(32, 24, seed=2)
    tiles = [each.view(-1, TILE, 24) for each in (gate, up)]
    woven = torch.stack(tiles, dim=1).flatten(0, 2)
    expected = swiglu(torch.cat([x @ gate.T, x @ up.T], dim=1))
    torch.testing.assert_close(few_row_linear(x, woven, None, 64, swiglu=True), expected)


def test_exported_shapes() -> None:
    def product(x: Tensor, weight: Tensor) -> Tensor:
        return few_row_linear(x, weight, None, 64, torch.float32, swiglu=True)

    x, weight = random(FEW_ROWS, 24).bfloat16(), random(64, 24).bfloat16()
    rows = torch.export.Dim("rows")
    module = torch.nn.Module()
    module.forward = product  # type: ignore[method-assign]
    program = torch.export.export(module, (x, weight), dynamic_shapes=({0: rows}, None))
    assert torch.equal(program.module()(x[:3], weight), product(x[:3], weight))
