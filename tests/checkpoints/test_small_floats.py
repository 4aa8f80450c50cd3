"""Weights in floats of 8 and 4 bits, packed by the published layouts: read to the bit, kept, and
refused by name where they do not fit."""

from __future__ import annotations

from collections.abc import Callable
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

from .small_float_layers import CASES, FP8, IN_BLOCKS, compressed, in_two, modelopt
from .test_quantised_groups import with_down

N, K = 16, 160
Parts = dict[str, Tensor]
CPU = Place("aoti", "cpu", runs_ops=True)
DOWN, NAME = "model.layers.1.mlp.down_proj", "layers.1.mlp.down.weight"


def opened(path: Path, parts: Parts, config: dict[str, Any]) -> Checkpoint:
    return load_checkpoint(with_down(path, parts, K).write(quantization_config=config))


@pytest.mark.parametrize("name", CASES)
def test_read_and_kept_to_the_bit(tmp_path: Path, name: str) -> None:
    parts, floats = CASES[name].layer(N, K)
    checkpoint = opened(tmp_path, parts, CASES[name].config)
    assert torch.equal(read_tensor(checkpoint.tensors, NAME), floats)
    stored = checkpoint.config.storage
    assert stored is not None
    assert stored.name == ("float8" if parts.get("weight", floats).dtype == FP8 else "float4")
    scheme = stored.scheme("layers.1.mlp.down")
    assert scheme is not None and stored.scheme("layers.0.mlp.down") is None
    for activation, bits in (("float32", 0), ("int8", 8)):
        if bits and scheme.is_float8:
            continue
        build = BuildConfig("float32", activation_dtype=activation)
        resolved, reasons = resolve_weights(build, "float32", stored, CPU)
        assert reasons == [f"weights {stored.name}: as the checkpoint stores them"]
        formats = formats_of(resolved, True, stored).at("layers.1.mlp")
        kind = formats.of({"down": N})
        assert kind == kept_format(scheme, bits)
        specs = kind.storage(N, K, torch.float32)
        buffers = {n: torch.empty(s.shape, dtype=s.dtype) for n, s in specs.items()}
        assert kind.load([StoredWeight.read(checkpoint.tensors, NAME)], buffers).error == 0
        assert torch.equal(kind.dequantised(buffers, N, K), floats)
        x = torch.randn(5, K, generator=torch.Generator().manual_seed(7))
        around: dict[str, Any] = {"norm": None, "gated": False, "residual": None}
        found, want = kind.product(buffers, x, None, N, None, **around), x @ floats.T
        assert (found - want).norm() < (0.02 if bits else 1e-5) * want.norm()


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
    parts, _ = CASES[name].layer(N, K)
    bend(parts)
    with pytest.raises(CheckpointError, match=message.replace("DOWN", DOWN)):
        read_tensor(opened(tmp_path, parts, CASES[name].config).tensors, NAME)


def test_fp8_that_is_nan_is_refused(tmp_path: Path) -> None:
    parts, _ = CASES["fp8"].layer(N, K)
    bent("weight", nan_at(5, 0xFF))(parts)
    checkpoint = opened(tmp_path, parts, CASES["fp8"].config)
    kind = kept_format(checkpoint.tensors.headers[NAME].storage, 0)  # type: ignore[arg-type]
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
        opened(tmp_path, CASES["deepseek"].layer(N, K)[0], config)
