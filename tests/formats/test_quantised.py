"""Quantised weights: what a checkpoint holds of them comes out again, and the reference product."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from trtspec.config.quantised import QuantisedTensor
from trtspec.config.storage import WeightStorage
from trtspec.errors import CheckpointError, ConfigError
from trtspec.formats.quantised import QuantisedFormat
from trtspec.formats.stored import StoredWeight

N, K = 70, 96  # no multiple of 16 outputs
SCHEMES = [
    *(WeightStorage(4, group) for group in (0, 16, 32)),
    WeightStorage(8),
    WeightStorage(8, 32, minima=True),
    WeightStorage(4, 32, "float16", zero_points=True),
    WeightStorage(4, 32, "float16", minima=True),
    WeightStorage(4, 16, "float16", zero_points=True, input_scales=True, permuted=True),
]


def noise(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def stored(scheme: WeightStorage, name: str, rows: int, seed: int = 0) -> StoredWeight:
    """A weight as a checkpoint of the scheme holds it: random values and all that belongs to them,
    that of the inputs the same for every seed."""
    groups = K // scheme.group_size if scheme.group_size else 1
    half = 1 << scheme.bits - 1
    random = noise(seed)
    dtype: torch.dtype = getattr(torch, scheme.scale_dtype)
    values = torch.randint(-half, half, (rows, K), generator=random, dtype=torch.int8)
    scales = (torch.rand(rows, groups, generator=random) - 0.3).to(dtype)
    zero_points = minima = factors = order = None
    if scheme.zero_points:
        zero_points = torch.randint(-half, half, (rows, groups), generator=random, dtype=torch.int8)
    if scheme.minima:
        minima = torch.randn(rows, groups, generator=random).to(dtype)
    if scheme.input_scales:
        factors = torch.rand(K, generator=noise(9)) + 0.5
    if scheme.permuted:
        order = torch.randperm(K, generator=noise(9)).to(torch.int32)
    weight = QuantisedTensor(values, scales, zero_points, minima, factors, order)
    return StoredWeight(name, weight)


def loaded(kind: QuantisedFormat, *parts: StoredWeight) -> dict[str, Tensor]:
    specs = kind.storage(N, K, torch.float32)
    buffers = {name: torch.full(s.shape, 7).to(s.dtype) for name, s in specs.items()}
    kind.load(parts, buffers)
    return buffers


@pytest.mark.parametrize("scheme", SCHEMES)
def test_values_of_a_checkpoint_are_kept(scheme: WeightStorage) -> None:
    """Of a fused layer whose parts have scales of their own."""
    kind = QuantisedFormat(scheme)
    parts = [stored(scheme, "a", 30), stored(scheme, "b", 40, 1)]
    buffers = loaded(kind, *parts)
    want = torch.cat([part.floats() for part in parts])
    assert torch.equal(kind.dequantised(buffers, N, K), want)
    used = sum(t.nbytes for t in buffers.values())
    assert N * K * scheme.bits // 8 <= kind.bytes(N, K, torch.float32) <= used


def test_what_floats_mean() -> None:
    """The formula by hand: the second group of permuted inputs, minimum and factor included."""
    weight = QuantisedTensor(
        torch.tensor([[1, 2, 3, -4]], dtype=torch.int8),
        torch.tensor([[2.0, 0.5]]),
        torch.tensor([[1, -2]], dtype=torch.int8),
        input_scales=torch.tensor([1.0, 10.0, 1.0, 1.0]),
        permutation=torch.tensor([3, 0, 2, 1], dtype=torch.int32),
    )
    want = [[(1 - 1) * 2.0, (2 + 2) * 0.5 * 10, (3 + 2) * 0.5, (-4 - 1) * 2.0]]
    assert weight.floats().tolist() == want
    weight = replace(weight, minima=torch.tensor([[0.25, 0.5]]))
    want = [[0.25, (2.0 + 0.5) * 10, 2.5 + 0.5, -10 + 0.25]]
    assert weight.floats().tolist() == want


@pytest.mark.parametrize("scheme", SCHEMES)
def test_floats_are_rounded_to_the_nearest_value(scheme: WeightStorage) -> None:
    """Beside a quantised part, in the order and with the factors that this one gives the inputs."""
    kind = QuantisedFormat(scheme)
    weight = torch.randn(N - 30, K, generator=noise(2))
    part = stored(scheme, "a", 30)
    buffers = loaded(kind, part, StoredWeight("b", weight))
    exact = kind.dequantised(buffers, N, K)
    assert torch.equal(exact[:30], part.floats())
    error = (exact[30:] - weight).abs().amax()
    assert 0 < error < 3.8 * 1.5 / (1 << scheme.bits - 1)  # a step: of the extreme, times a factor


@pytest.mark.parametrize("input_bits", [0, 8, 16])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_product_is_that_of_the_weight(scheme: WeightStorage, input_bits: int) -> None:
    kind = QuantisedFormat(scheme, input_bits)
    buffers = loaded(kind, stored(scheme, "a", N))
    x = torch.randn(5, K, generator=noise(3))
    around: dict[str, Any] = {"norm": None, "gated": False, "residual": None}
    found = kind.product(buffers, x, None, N, None, **around)
    weight = kind.dequantised(buffers, N, K)
    if not input_bits:
        torch.testing.assert_close(found, x @ weight.T, rtol=1e-4, atol=1e-3)
        return
    error = found - x @ weight.T
    assert error.any() and error.norm() < 1.28 / (1 << input_bits - 1) * found.norm()
    for row in range(5):  # which the other rows do not change
        alone = kind.product(buffers, x[row : row + 1], None, N, None, **around)
        torch.testing.assert_close(alone[0], found[row], rtol=1e-4, atol=1e-4)


def test_what_does_not_fit_is_refused() -> None:
    scheme = WeightStorage(4, 32, zero_points=True, permuted=True)
    kind, part = QuantisedFormat(scheme), stored(scheme, "a", N)
    weight = part.quantised
    assert weight is not None and weight.permutation is not None
    high = StoredWeight("a", replace(weight, values=weight.values + 1))
    cases: list[tuple[WeightStorage, StoredWeight, str]] = [
        (scheme, high, "values from -7 to 8; int4 holds -8 to 7"),
        (replace(scheme, group_size=64), part, "3 scales for 96 inputs.* 64 do not divide"),
        (replace(scheme, zero_points=False), part, "zero points, which its storage does not say"),
        (replace(scheme, permuted=False), part, "has permutation, which its storage does not say"),
    ]
    for storage, given, message in cases:
        with pytest.raises(CheckpointError, match=message):
            loaded(QuantisedFormat(storage), given)
    other = stored(scheme, "b", 35).quantised
    assert other is not None
    flipped = StoredWeight("b", replace(other, permutation=weight.permutation.flip(0)))
    with pytest.raises(
        CheckpointError, match="a and b are one layer's, but the orders of their inputs"
    ):
        loaded(kind, stored(scheme, "a", 35), flipped)
    weight.scales[0] = torch.nan
    with pytest.raises(
        CheckpointError, match=r"a \(scales\) has 3 values that are NaN or infinite"
    ):
        loaded(kind, part)
    with pytest.raises(ConfigError, match="exclude each other"):
        WeightStorage(4, zero_points=True, minima=True)
    with pytest.raises(ConfigError, match="scale_dtype 'int8' must be one of float32, float16"):
        WeightStorage(4, scale_dtype="int8")
