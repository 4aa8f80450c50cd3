"""Weights in floats of 8 and 4 bits, packed by the published layouts: read to the bit, kept, and
refused by name where they do not fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from checkpoint_converters import load_checkpoint
from checkpoint_converters.checkpoint import Checkpoint
from trtspec.config.build_config import BuildConfig
from trtspec.errors import CheckpointError
from trtspec.formats.base import Place
from trtspec.formats.choose import formats_of, resolve_weights
from trtspec.formats.registry import kept_format
from trtspec.formats.stored import StoredWeight, read_tensor

from .test_quantised_groups import with_down

N, K = 16, 160
Parts = dict[str, Tensor]
Made = tuple[Parts, Tensor]
"""A layer's tensors, and the floats that they stand for."""
CPU = Place("aoti", "cpu", runs_ops=True)
DOWN, NAME = "model.layers.1.mlp.down_proj", "layers.1.mlp.down.weight"
FP8 = torch.float8_e4m3fn
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
E2M1 += [-value for value in E2M1]


def noise() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def fp8(n: int, k: int) -> Tensor:
    """All kinds of values, denormal ones among them."""
    return (torch.randn(n, k, generator=noise()) * 4 ** torch.linspace(-4, 4, k)).to(FP8)


def scaled(role: str, *shape: int, block: tuple[int, int] = (1, K)) -> Callable[[], Made]:
    """FP8 with scales of a shape, each of a block of so many outputs and inputs."""

    def make() -> Made:
        values, scales = fp8(N, K), 0.01 + torch.rand(shape, generator=noise())
        floats = torch.empty(N, K)
        of = scales.reshape(-(-N // block[0]), -1)
        for n in range(N):
            for k in range(K):
                floats[n, k] = values[n, k].float() * of[n // block[0], k // block[1]]
        return {"weight": values, role: scales}, floats

    return make


def halves() -> tuple[Tensor, Tensor]:
    """FP4, two values a byte, the first in its lower half; and what these are."""
    packed = torch.randint(256, (N, K // 2), generator=noise(), dtype=torch.uint8)
    values = torch.tensor(
        [[E2M1[h] for b in row for h in (b % 16, b // 16)] for row in packed.tolist()]
    )
    return packed, values


def powers(values: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Exponents of groups, and the values times their powers of two."""
    exponents = torch.randint(118, 130, (N, K // size), generator=noise(), dtype=torch.uint8)
    exponents[0, 0] = 0  # 2^-127, which float32 has with a denormal one
    factors = torch.tensor([[2.0 ** (e - 127) for e in row] for row in exponents.tolist()])
    return exponents, values.float() * factors.repeat_interleave(size, 1)


def mxfp4(packed_role: str) -> Callable[[], Made]:
    def make() -> Made:
        packed, values = halves()
        exponents, floats = powers(values, 32)
        return {packed_role: packed, "weight_scale": exponents}, floats

    return make


def mxfp8() -> Made:
    exponents, floats = powers(fp8(N, K), 32)
    return {"weight": fp8(N, K), "weight_scale": exponents}, floats


def nvfp4(packed_role: str, global_role: str, shape: tuple[int, ...]) -> Callable[[], Made]:
    """ModelOpt multiplies scales by a number, compressed-tensors divides by one."""

    def make() -> Made:
        packed, values = halves()
        scales = (1 + 100 * torch.rand(N, K // 16, generator=noise())).to(FP8)
        divides = "global" in global_role
        number = torch.full(shape, 3700.3 if divides else 0.00037)
        own = scales.float() / number if divides else scales.float() * number
        parts = {packed_role: packed, "weight_scale": scales, global_role: number}
        return parts, values * own.repeat_interleave(16, 1)

    return make


def nvfp4_awq() -> Made:
    parts, floats = nvfp4("weight", "weight_scale_2", ())()
    factors = 0.5 + torch.rand(K, generator=noise())
    return {**parts, "pre_quant_scale": factors}, floats * factors


def modelopt(algorithm: str) -> dict[str, Any]:
    return {"quant_method": "modelopt", "quant_algo": algorithm}


def compressed(form: str, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"type": "float", **weights}}
    groups = {"group_0": group}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups}


def in_two(**more: Any) -> dict[str, Any]:
    weights = {"num_bits": 4, "strategy": "tensor_group", "group_size": 16, **more}
    return compressed("nvfp4-pack-quantized", **weights)


IN_BLOCKS = {"quant_method": "fp8", "weight_block_size": [8, 64], "activation_scheme": "dynamic"}
BLOCKS = scaled("weight_scale_inv", 2, 3, block=(8, 64))
CASES: Mapping[str, tuple[dict[str, Any], Callable[[], Made]]] = {
    "deepseek": (IN_BLOCKS, BLOCKS),
    "fp8": ({"quant_method": "fp8"}, scaled("weight_scale", block=(N, K))),
    "modelopt-fp8": (modelopt("FP8"), scaled("weight_scale", block=(N, K))),
    "modelopt-channels": (modelopt("FP8_PER_CHANNEL_PER_TOKEN"), scaled("weight_scale", N)),
    "modelopt-blocks": (
        modelopt("fp8_pb_wo"), scaled("weight_scale", 1, 1, 2, 1, block=(128, 128))
    ),
    "modelopt-mxfp8": (modelopt("MXFP8"), mxfp8),
    "modelopt-nvfp4": (modelopt("NVFP4"), nvfp4("weight", "weight_scale_2", ())),
    "modelopt-nvfp4-awq": (modelopt("NVFP4_AWQ"), nvfp4_awq),
    "modelopt-mxfp4": (modelopt("W4A8_MXFP4_FP8"), mxfp4("weight")),
    "compressed-tensor": (
        compressed("float-quantized", num_bits=8, strategy="tensor"),
        scaled("weight_scale", 1, block=(N, K)),
    ),
    "compressed-channel": (
        compressed("float-quantized", num_bits=8, strategy="channel"), scaled("weight_scale", N, 1)
    ),
    "compressed-block": (
        compressed("float-quantized", num_bits=8, strategy="block", block_structure=[8, 64]),
        scaled("weight_scale", 2, 3, block=(8, 64)),
    ),
    "compressed-nvfp4": (in_two(), nvfp4("weight_packed", "weight_global_scale", (1,))),
    "compressed-mxfp4": (
        compressed("mxfp4-pack-quantized", num_bits=4, strategy="group", group_size=32),
        mxfp4("weight_packed"),
    ),
}  # fmt: skip


def opened(path: Path, parts: Parts, config: dict[str, Any]) -> Checkpoint:
    return load_checkpoint(with_down(path, parts, K).write(quantization_config=config))


@pytest.mark.parametrize("name", CASES)
def test_read_and_kept_to_the_bit(tmp_path: Path, name: str) -> None:
    config, make = CASES[name]
    parts, floats = make()
    checkpoint = opened(tmp_path, parts, config)
    assert torch.equal(read_tensor(checkpoint.tensors, NAME), floats)
    stored = checkpoint.config.storage
    assert stored is not None
    assert stored.name == ("float8" if parts.get("weight", floats).dtype == FP8 else "float4")
    scheme = stored.scheme("layers.1.mlp.down")
    assert scheme is not None and stored.scheme("layers.0.mlp.down") is None
    for activation, rounds in (("float32", False), ("int8", True)):
        if rounds and scheme.is_float8:
            continue
        build = BuildConfig("float32", activation_dtype=activation)
        resolved, reasons = resolve_weights(build, "float32", stored, CPU)
        assert reasons == [f"weights {stored.name}: as the checkpoint stores them"]
        formats = formats_of(resolved, True, stored).at("layers.1.mlp")
        kind = formats.of({"down": N})
        assert kind == kept_format(scheme, rounds)
        specs = kind.storage(N, K, torch.float32)
        buffers = {n: torch.empty(s.shape, dtype=s.dtype) for n, s in specs.items()}
        assert kind.load([StoredWeight.read(checkpoint.tensors, NAME)], buffers).error == 0
        assert torch.equal(kind.dequantised(buffers, N, K), floats)
        x = torch.randn(5, K, generator=noise())
        around: dict[str, Any] = {"norm": None, "gated": False, "residual": None}
        found, want = kind.product(buffers, x, None, N, None, **around), x @ floats.T
        assert (found - want).norm() < (0.02 if rounds else 1e-5) * want.norm()


def bent(role: str, to: Callable[[Tensor], Tensor | None]) -> Callable[[Parts], Any]:
    def apply(parts: Parts) -> None:
        changed = to(parts.pop(role))
        if changed is not None:
            parts[role] = changed.contiguous()

    return apply


def nan_at(place: int, byte: int) -> Callable[[Tensor], Tensor]:
    def put(tensor: Tensor) -> Tensor:
        raw = tensor.clone().view(torch.uint8)
        raw.view(-1)[place] = byte
        return raw.view(tensor.dtype)

    return put


BAD: list[tuple[str, Callable[[Parts], Any], str]] = [
    ("deepseek", bent("weight_scale_inv", lambda t: None), "DOWN.weight_scale_inv is missing"),
    ("deepseek", bent("weight_scale_inv", lambda t: t[:1]), r"shape \[1, 3\]; .* \[2, 3\]"),
    ("deepseek", bent("weight_scale_inv", lambda t: t / 0), "weight_scale_inv .* NaN or infinite"),
    ("fp8", bent("weight_scale", lambda t: torch.ones(3)), r"shape \[3\]; it must be one value"),
    ("fp8", bent("weight", lambda t: t.view(torch.int8)), "weight .* dtype I8; it must be F8_E4M3"),
    ("modelopt-nvfp4", bent("weight_scale_2", lambda t: None), "weight_scale_2 is missing"),
    ("modelopt-nvfp4", bent("weight_scale_2", lambda t: -t), "scale_2 .* one positive number"),
    ("modelopt-nvfp4", bent("weight_scale", lambda t: t[:, 1:]), r"shape \[16, 9\]; .* \[16, 10\]"),
    ("modelopt-nvfp4", bent("weight_scale", nan_at(3, 0x7F)), "weight_scale .* NaN or infinite"),
    ("compressed-nvfp4", bent("weight_global_scale", lambda t: None), "global_scale is missing"),
    ("compressed-nvfp4", bent("weight_packed", lambda t: t.int()), "weight_packed .* must be U8"),
    ("compressed-mxfp4", bent("weight_scale", nan_at(3, 255)), "exponents of 255, which are NaN"),
    ("compressed-mxfp4", bent("weight_scale", lambda t: t[1:]), r"shape \[15, 5\]; .* \[16, 5\]"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "bend", "message"), BAD)
def test_layers_that_do_not_fit(
    tmp_path: Path, name: str, bend: Callable[[Parts], Any], message: str
) -> None:
    config, make = CASES[name]
    parts, _ = make()
    bend(parts)
    with pytest.raises(CheckpointError, match=message.replace("DOWN", DOWN)):
        read_tensor(opened(tmp_path, parts, config).tensors, NAME)


def test_fp8_that_is_nan_is_refused(tmp_path: Path) -> None:
    config, make = CASES["fp8"]
    parts, _ = make()
    bent("weight", nan_at(5, 0xFF))(parts)
    checkpoint = opened(tmp_path, parts, config)
    kind = kept_format(checkpoint.tensors.headers[NAME].storage, False)  # type: ignore[arg-type]
    specs = kind.storage(N, K, torch.float32)
    buffers = {n: torch.empty(s.shape, dtype=s.dtype) for n, s in specs.items()}
    with pytest.raises(CheckpointError, match=f"{NAME} has 1 values that are NaN"):
        kind.load([StoredWeight.read(checkpoint.tensors, NAME)], buffers)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (IN_BLOCKS | {"weight_block_size": [128]}, "weight_block_size .128. must be two numbers"),
        (IN_BLOCKS | {"fmt": "e5m2"}, "fmt 'e5m2' is not supported"),
        (modelopt("NVFP4_SVD"), "quant_algo 'NVFP4_SVD' is not supported"),
        (in_two(strategy="channel"), "strategy 'channel' is not supported; .* tensor_group, group"),
        (
            compressed("float-quantized", num_bits=8, strategy="block"),
            "block_structure None must be two numbers",
        ),
        (compressed("float-quantized", num_bits=6), "num_bits 6 is not supported"),
    ],
)
def test_settings_that_are_not_read(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        opened(tmp_path, CASES["deepseek"][1]()[0], config)
