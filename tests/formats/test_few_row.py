"""Weights for the few-row products of CUDA: the values that other formats have, packed otherwise;
and which networks get them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from trtspec.backends.registry import backend_named
from trtspec.builder.resolve import place_of
from trtspec.config.build_config import BuildConfig
from trtspec.config.feed_forwards.dense import DenseSpec
from trtspec.config.quantised import QuantisedTensor
from trtspec.config.storage import NetworkStorage, WeightStorage
from trtspec.errors import ConfigError
from trtspec.formats.base import Place
from trtspec.formats.choose import formats_of, resolve_weights
from trtspec.formats.network_formats import NetworkFormats
from trtspec.formats.plain import ROWS, FewRowFormat
from trtspec.formats.quantised import QuantisedFormat
from trtspec.formats.registry import floats_beside, for_few_rows
from trtspec.formats.stored import StoredWeight
from trtspec.formats.tiled import TiledFormat
from trtspec.models.feed_forwards.dense import DenseFeedForward
from trtspec.ops.linear import swiglu

N, K = 40, 160
CUDA = Place("aoti", "cuda", runs_ops=True, few_rows=True)
SCHEMES = {
    "int8": WeightStorage(8, 32, zero_points=True),
    "int4, minima": WeightStorage(4, 16, "float16", minima=True),
    "act-order": WeightStorage(4, 32, "float16", True, input_scales=True, permuted=True),
    "FP8": WeightStorage(8, kind="float"),
    "FP4": WeightStorage(4, 16, kind="float"),
}


def stored(scheme: WeightStorage) -> QuantisedTensor:
    """A random weight of a scheme."""
    groups = K // (scheme.group_size or K)
    places = torch.randint(1 << scheme.bits, (N, K))
    values = (places - (1 << scheme.bits - 1)).to(torch.int8)
    if scheme.table is not None:
        values = torch.tensor(scheme.table, dtype=torch.int8)[places]
    if scheme.is_float8:
        values = torch.randn(N, K).to(torch.float8_e4m3fn)
    return QuantisedTensor(
        values,
        torch.rand(N, groups).half().float() + 0.1,
        torch.randint(-8, 8, (N, groups), dtype=torch.int8) if scheme.zero_points else None,
        torch.randn(N, groups).half().float() if scheme.minima else None,
        torch.rand(K) + 0.5 if scheme.input_scales else None,
        torch.randperm(K, dtype=torch.int32) if scheme.permuted else None,
    )


@pytest.mark.parametrize("name", SCHEMES)
def test_weights_of_checkpoints(name: str) -> None:
    torch.manual_seed(0)
    plain = QuantisedFormat(SCHEMES[name], input_bits=0)
    tiled = for_few_rows(plain)
    assert isinstance(tiled, TiledFormat)
    part = StoredWeight("a", stored(plain.scheme))
    buffers = []
    for kind in (plain, tiled):
        specs = kind.storage(N, K, torch.float32)
        buffers.append({n: torch.empty(s.shape, dtype=s.dtype) for n, s in specs.items()})
        kind.load([part], buffers[-1])
    exact = plain.dequantised(buffers[0], N, K)
    assert torch.equal(tiled.dequantised(buffers[1], N, K), exact)
    ids = torch.tensor([39, 0, 17, 17])
    assert torch.equal(tiled.rows(buffers[1], ids, K, torch.float32), exact[ids])
    x = torch.randn(3, K)
    found = tiled.product(
        buffers[1], x, None, N, None, norm=None, gated=False, residual=torch.ones(3, N)
    )
    torch.testing.assert_close(found, 1 + x @ exact.T, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("quantised", [True, False])
def test_layers_that_take_their_swiglu_along(quantised: bool) -> None:
    plain = QuantisedFormat(SCHEMES["int8"]) if quantised else ROWS
    assert plain.with_swiglu() is None and for_few_rows(plain).with_swiglu() is None
    kind = for_few_rows(plain, may_gate=True).with_swiglu()
    assert kind is not None
    n, bias = 64, torch.randn(64)
    weight = torch.randn(n, K)
    specs = kind.storage(n, K, torch.float32)
    buffers = {name: torch.empty(s.shape, dtype=s.dtype) for name, s in specs.items()}
    kind.load([StoredWeight("gate", weight[:32]), StoredWeight("up", weight[32:])], buffers)
    exact = kind.dequantised(buffers, n, K)
    torch.testing.assert_close(exact, weight, rtol=0, atol=0.03 * quantised)
    x = torch.randn(3, K) / K**0.5
    around = {"norm": None, "gated": False, "residual": None}
    found = kind.product(buffers, x, bias, n, None, **around)
    torch.testing.assert_close(found, swiglu(x @ exact.T + bias))


def test_feed_forward_parts_take_it() -> None:
    """Where their features fill tiles."""
    torch.manual_seed(0)
    for inner in (32, 40):
        parts = [
            DenseFeedForward(
                DenseSpec(inner), K, torch.float32, formats=NetworkFormats.uniform(kind)
            )
            for kind in (ROWS, for_few_rows(ROWS, may_gate=True))
        ]
        assert [part.gates for part in parts] == [False, inner == 32]
        gate, up, down = (torch.randn(shape) / 9 for shape in ((inner, K), (inner, K), (K, inner)))
        for part in parts:
            assert part.gate_up is not None
            part.gate_up.load([StoredWeight("gate", gate), StoredWeight("up", up)])
            part.down.load([StoredWeight("down", down)])
        x, residual = torch.randn(3, K), torch.randn(3, K)
        plain, own = (part(x, norm=None, residual=residual) for part in parts)
        torch.testing.assert_close(own, plain)


def test_which_networks_get_them() -> None:
    asked = BuildConfig(
        "bfloat16", device="cuda", weight_dtype="int4", head_weight_dtype="bfloat16",
        few_row_products=True,
    )  # fmt: skip
    build, _ = resolve_weights(asked, "bfloat16", None, CUDA)
    assert build.activation_dtype == "bfloat16"
    formats = formats_of(build, in_panels=False)
    assert formats.layers == TiledFormat(WeightStorage(4, 32, "float16"), may_gate=True)
    assert formats.head == FewRowFormat(may_gate=True)
    assert floats_beside(formats.layers) == FewRowFormat()
    with_adapters = formats_of(replace(build, enable_lora=True), in_panels=False)
    assert with_adapters.layers.with_swiglu() is None
    kept = NetworkStorage(SCHEMES["FP8"])
    build, _ = resolve_weights(replace(asked, weight_dtype="auto"), "bfloat16", kept, CUDA)
    expected = TiledFormat(SCHEMES["FP8"], may_gate=True)
    assert formats_of(build, False, kept).of({"a": N}) == expected


@pytest.mark.parametrize(
    ("place", "scheme", "said"),
    [
        (replace(CUDA, few_rows=False), WeightStorage(4, 32), "without few_row_products"),
        (CUDA, WeightStorage(4, 32, kind="iq"), "values of iq4 are for CPUs"),
    ],
)
def test_refused(place: Place, scheme: WeightStorage, said: str) -> None:
    build = BuildConfig("bfloat16", few_row_products=place.few_rows)
    with pytest.raises(ConfigError, match=said):
        resolve_weights(build, "bfloat16", NetworkStorage(scheme), place)


@pytest.mark.parametrize(
    ("backend", "device", "dtype", "said"),
    [
        ("aoti", "cpu", "bfloat16", "on backend 'aoti' and device 'cpu': those are kernels for C"),
        ("tensorrt", "cuda", "bfloat16", "which aoti and eager call; leave it out"),
        ("aoti", "cuda", "float32", "with dtype float32: those kernels multiply bfloat16 or"),
    ],
)
def test_where_there_are_none(backend: str, device: str, dtype: str, said: str) -> None:
    asked = BuildConfig(dtype, few_row_products=True)
    with pytest.raises(ConfigError, match=said):
        place_of(backend_named(backend), device, asked)
    assert place_of(backend_named("eager"), "cuda", replace(asked, dtype="float16")).few_rows
