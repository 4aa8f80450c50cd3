"""Layers of FP8 and FP4 as the schemes publish them, written out value by value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
E2M1 += [-value for value in E2M1]
_SIZE = 0.1  # of the weights, about
Made = tuple[dict[str, Tensor], Tensor]
"""A layer's tensors, and the floats that they stand for."""


@dataclass(frozen=True)
class FloatCase:
    """A scheme: what config.json says, and a random layer of so many outputs and inputs, of which
    these are a multiple."""

    config: dict[str, Any]
    layer: Callable[[int, int], Made]
    multiple: int = 1


def noise(n: int, k: int) -> torch.Generator:
    return torch.Generator().manual_seed(n * 1000 + k)


def fp8(n: int, k: int) -> Tensor:
    """Of many sizes, denormal ones among them."""
    sizes = 2.0 ** torch.randint(-8, 4, (n, k), generator=noise(k, n))
    return (torch.randn(n, k, generator=noise(n, k)) * sizes).to(FP8)


def scaled(role: str, block: tuple[int, int], shape: Callable[[int, int], tuple[int, ...]]) -> Any:
    """FP8 with a scale of each block of so many outputs and inputs (0: all), in a shape that those
    of all blocks ``[rows, columns]`` are brought to."""

    def make(n: int, k: int) -> Made:
        values, high, wide = fp8(n, k), block[0] or n, block[1] or k
        rows, columns = -(-n // high), -(-k // wide)
        scales = _SIZE * (0.5 + torch.rand(rows, columns, generator=noise(n, k)))
        floats = torch.empty(n, k)
        for i in range(n):
            for j in range(k):
                floats[i, j] = values[i, j].float() * scales[i // high, j // wide]
        return {"weight": values, role: scales.reshape(shape(rows, columns))}, floats

    return make


def _halves(n: int, k: int) -> tuple[Tensor, Tensor]:
    """FP4, two values a byte, the first in its lower half; and what these are."""
    packed = torch.randint(256, (n, k // 2), generator=noise(n, k), dtype=torch.uint8)
    rows = [[E2M1[h] for byte in row for h in (byte % 16, byte // 16)] for row in packed.tolist()]
    return packed, torch.tensor(rows)


def _powers(values: Tensor) -> tuple[Tensor, Tensor]:
    """Exponents of groups of 32, and the values times their powers of two."""
    n, k = values.shape
    exponents = torch.randint(121, 125, (n, k // 32), generator=noise(n, k), dtype=torch.uint8)
    exponents[0, 0] = 0  # 2^-127, a denormal number of float32
    factors = torch.tensor([[2.0 ** (e - 127) for e in row] for row in exponents.tolist()])
    return exponents, values.float() * factors.repeat_interleave(32, 1)


def _mxfp4(packed_role: str) -> Callable[[int, int], Made]:
    def make(n: int, k: int) -> Made:
        packed, values = _halves(n, k)
        exponents, floats = _powers(values)
        return {packed_role: packed, "weight_scale": exponents}, floats

    return make


def _mxfp8(n: int, k: int) -> Made:
    values = fp8(n, k)
    exponents, floats = _powers(values)
    return {"weight": values, "weight_scale": exponents}, floats


def _nvfp4(packed_role: str, global_role: str, divides: bool) -> Callable[[int, int], Made]:
    """ModelOpt multiplies scales by a number, compressed-tensors divides by one."""

    def make(n: int, k: int) -> Made:
        packed, values = _halves(n, k)
        scales = (1 + 100 * torch.rand(n, k // 16, generator=noise(n, k))).to(FP8)
        number = torch.tensor([1370.3]) if divides else torch.tensor(0.00073)
        own = scales.float() / number if divides else scales.float() * number
        parts = {packed_role: packed, "weight_scale": scales, global_role: number}
        return parts, values * own.repeat_interleave(16, 1)

    return make


def _nvfp4_awq(n: int, k: int) -> Made:
    parts, floats = _nvfp4("weight", "weight_scale_2", False)(n, k)
    factors = 0.5 + torch.rand(k, generator=noise(k, n))
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


def _one(rows: int, columns: int) -> tuple[int, ...]:
    return ()


def _column(rows: int, columns: int) -> tuple[int, ...]:
    return rows, 1


def _both(rows: int, columns: int) -> tuple[int, ...]:
    return rows, columns


IN_BLOCKS = {"quant_method": "fp8", "weight_block_size": [8, 64], "activation_scheme": "dynamic"}
CASES: Mapping[str, FloatCase] = {
    "deepseek": FloatCase(IN_BLOCKS, scaled("weight_scale_inv", (8, 64), _both)),
    "fp8": FloatCase({"quant_method": "fp8"}, scaled("weight_scale", (0, 0), _one)),
    "modelopt-fp8": FloatCase(modelopt("FP8"), scaled("weight_scale", (0, 0), _one)),
    "modelopt-channels": FloatCase(
        modelopt("FP8_PER_CHANNEL_PER_TOKEN"), scaled("weight_scale", (1, 0), lambda r, c: (r,))
    ),
    "modelopt-blocks": FloatCase(
        modelopt("fp8_pb_wo"), scaled("weight_scale", (128, 128), lambda r, c: (r, 1, c, 1))
    ),
    "modelopt-mxfp8": FloatCase(modelopt("MXFP8"), _mxfp8, 32),
    "modelopt-nvfp4": FloatCase(modelopt("NVFP4"), _nvfp4("weight", "weight_scale_2", False), 16),
    "modelopt-nvfp4-awq": FloatCase(modelopt("NVFP4_AWQ"), _nvfp4_awq, 16),
    "modelopt-mxfp4": FloatCase(modelopt("W4A8_MXFP4_FP8"), _mxfp4("weight"), 32),
    "compressed-tensor": FloatCase(
        compressed("float-quantized", num_bits=8, strategy="tensor"),
        scaled("weight_scale", (0, 0), lambda r, c: (1,)),
    ),
    "compressed-channel": FloatCase(
        compressed("float-quantized", num_bits=8, strategy="channel"),
        scaled("weight_scale", (1, 0), _column),
    ),
    "compressed-block": FloatCase(
        compressed("float-quantized", num_bits=8, strategy="block", block_structure=[8, 64]),
        scaled("weight_scale", (8, 64), _both),
    ),
    "compressed-nvfp4": FloatCase(
        in_two(), _nvfp4("weight_packed", "weight_global_scale", True), 16
    ),
    "compressed-mxfp4": FloatCase(
        compressed("mxfp4-pack-quantized", num_bits=4, strategy="group", group_size=32),
        _mxfp4("weight_packed"),
        32,
    ),
}
