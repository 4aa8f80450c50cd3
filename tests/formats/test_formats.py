"""Every weight format: what it stores, how it is filled, and its product against its reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from trtspec.config.build_config import BuildConfig
from trtspec.config.quantised import QuantisedTensor
from trtspec.config.storage import NetworkStorage, WeightStorage
from trtspec.errors import CheckpointError, ConfigError
from trtspec.formats.base import Place, WeightFormat
from trtspec.formats.choose import formats_of, resolve_weights
from trtspec.formats.plain import PANELS, ROWS, FewRowFormat
from trtspec.formats.quantised import QuantisedFormat
from trtspec.formats.stored import StoredWeight
from trtspec.formats.tiled import TiledFormat
from trtspec.ops.linear import rms_norm, swiglu

FORMATS: dict[str, WeightFormat] = {
    "panels": PANELS,
    "rows": ROWS,
    "int8": QuantisedFormat(WeightStorage(8), input_bits=0),
    "int8-groups": QuantisedFormat(WeightStorage(8, 32), input_bits=0),
    "int4": QuantisedFormat(WeightStorage(4, 32, "float16"), input_bits=0),
    "rows-few": FewRowFormat(),
    "int8-tiles": TiledFormat(WeightStorage(8)),
    "int4-tiles": TiledFormat(WeightStorage(4, 32, "float16")),
}
N, K = 70, 96  # no multiple of a panel; three groups
CPU = Place("aoti", "cpu", runs_ops=True)


@dataclass
class Norm:
    weight: Tensor
    eps: float = 1e-5

    def __call__(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def loaded(kind: WeightFormat, *parts: StoredWeight) -> dict[str, Tensor]:
    specs = kind.storage(N, K, torch.float32)
    buffers = {name: torch.full(s.shape, 99).to(s.dtype) for name, s in specs.items()}
    kind.load(parts, buffers)
    return buffers


@pytest.mark.parametrize("name", FORMATS)
def test_the_product_is_that_of_the_reference(name: str) -> None:
    kind, norm = FORMATS[name], Norm(1 + random(K, seed=3))
    weight, bias, residual = random(N, K), random(N, seed=1), random(5, N, seed=2)
    buffers = loaded(kind, StoredWeight("a", weight[:30]), StoredWeight("b", weight[30:]))
    exact = kind.dequantised(buffers, N, K)
    assert torch.equal(exact, weight) != kind.is_rounded
    step = 4 / (1 << 3 if name.startswith("int4") else 1 << 7)  # of the largest values
    torch.testing.assert_close(exact, weight, rtol=0, atol=step * kind.is_rounded)
    for gated in (False, True):
        x = random(5, K * (1 + gated), seed=4)
        ready = swiglu(x) if gated else norm(x)
        found = kind.product(
            buffers, x, bias, N, None, norm=None if gated else norm, gated=gated, residual=residual
        )
        torch.testing.assert_close(found, residual + (ready @ exact.T + bias))


@pytest.mark.parametrize("name", ["panels", "int8", "int8-groups", "int4"])
def test_a_row_has_its_bits_alone(name: str) -> None:
    kind, x = FORMATS[name], random(33, K)
    buffers = loaded(kind, StoredWeight("a", random(N, K, seed=1)))
    product = [
        kind.product(buffers, rows, None, N, None, norm=None, gated=False, residual=None)
        for rows in (x, x[20:21])
    ]
    assert torch.equal(product[0][20:21], product[1])


@pytest.mark.parametrize("name", FORMATS)
def test_quantised_weights_are_taken_as_they_are(name: str) -> None:
    kind = FORMATS[name]
    values = torch.randint(
        *((-8, 8) if name.startswith("int4") else (-127, 128)), (N, K), dtype=torch.int8
    )
    scales = (random(N, 1).abs() + 0.1).half().float()
    tensors = {"a": QuantisedTensor(values, scales)}
    part = StoredWeight.read(tensors, "a")
    assert torch.equal(kind.dequantised(loaded(kind, part), N, K), part.floats())
    scales[3] = torch.inf
    with pytest.raises(
        CheckpointError, match=r"a \(scales\) has 1 values that are NaN or infinite"
    ):
        StoredWeight.read(tensors, "a")
    with pytest.raises(CheckpointError, match="has no tensor b"):
        StoredWeight.read(tensors, "b")


@pytest.mark.parametrize("name", FORMATS)
def test_what_a_pass_reads(name: str) -> None:
    """At most what lies in memory, which is padded to panels; embeddings are looked up by rows."""
    kind = FORMATS[name]
    stored = sum(x.nbytes for x in loaded(kind, StoredWeight("a", random(N, K))).values())
    assert N * K // 2 <= kind.bytes(N, K, torch.float32) <= stored
    assert kind.bytes(128, 2 * K, torch.float32) == sum(
        s.dtype.itemsize * torch.Size(s.shape).numel()
        for s in kind.storage(128, 2 * K, torch.float32).values()
    )
    ids = torch.tensor([0, 69, 64])
    buffers = loaded(kind, StoredWeight("a", random(N, K)))
    rows = kind.rows(buffers, ids, K, torch.float32)
    assert torch.equal(rows, kind.dequantised(buffers, N, K)[ids])


def test_quantised_checkpoints_keep_their_format() -> None:
    stored = NetworkStorage(WeightStorage(bits=8))
    auto = BuildConfig("float32")
    build, reasons = resolve_weights(auto, "float32", stored, CPU)
    assert reasons == ["weights int8: as the checkpoint stores them"]
    assert (build.weight_dtype, build.activation_dtype) == ("float32", "int8")
    formats = formats_of(build, True, stored)
    assert formats.of({"fc": 8}) == QuantisedFormat(WeightStorage(8)) and formats.head == PANELS
    build, reasons = resolve_weights(auto, "float32", None, CPU)
    assert (build.weight_dtype, build.weight_group_size, reasons) == ("float32", 0, [])
    assert (build.head_weight_dtype, build.activation_dtype) == ("float32", "float32")
    elsewhere = Place("onnx", "cpu", runs_ops=False, with_ops=("aoti", "eager"))
    with pytest.raises(ConfigError, match="not available on backend 'onnx', but on aoti and eager"):
        resolve_weights(auto, "float32", stored, elsewhere)


@pytest.mark.parametrize(
    ("asked", "layers", "head"),
    [
        ({"weight_dtype": "int4"}, WeightStorage(4, 32, "float16"), WeightStorage(8)),
        ({"weight_dtype": "int8"}, WeightStorage(8), WeightStorage(8)),
        (
            {"weight_dtype": "int8", "weight_group_size": 64, "head_weight_dtype": "int4"},
            WeightStorage(8, 64),
            WeightStorage(4, 32, "float16"),
        ),
        (
            {"weight_dtype": "int4", "weight_group_size": 0, "head_weight_dtype": "float32"},
            WeightStorage(4, 0, "float16"),
            None,
        ),
        ({"head_weight_dtype": "int8"}, None, WeightStorage(8)),
    ],
)
@pytest.mark.parametrize("activation", ["auto", "int8", "float32"])
def test_what_is_asked_for_is_made(
    asked: dict[str, Any], layers: WeightStorage | None, head: WeightStorage | None, activation: str
) -> None:
    build = BuildConfig("float32", activation_dtype=activation, **asked)
    formats = formats_of(resolve_weights(build, "float32", None, CPU)[0], in_panels=True)
    made = formats.at("layers.0").of({"attn.q": 8}), formats.of_head("head")
    bits = 0 if activation == "float32" else 8
    # What logits are made of is rounded less.
    for kind, scheme, rounded in zip(made, (layers, head), (bits, 2 * bits), strict=True):
        assert kind == (QuantisedFormat(scheme, rounded) if scheme else PANELS)
    assert formats.target_head == made[1]
    draft = formats_of(resolve_weights(build, "float32", None, CPU)[0], True, rounds_head=True)
    rounded = QuantisedFormat(head, bits) if head else PANELS
    assert draft.of_head("head") == rounded and draft.layers == formats.layers
