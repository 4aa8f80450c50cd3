"""NVIDIA ModelOpt's exports: quant_method ``modelopt``, or hf_quant_config.json.

A layer has one of:

* ``weight [N, K] i8`` and ``weight_scale [N]`` (``W8A16``, ``W8A8_SQ_PER_CHANNEL``);
* ``weight [N / 2, K] u8`` with outputs 2 i and 2 i + 1 in the lower and upper half of a byte,
  signed, and ``weight_scale [N, G]`` (``W4A16_AWQ``);
* ``weight [N, K]`` in FP8 with one ``weight_scale`` (``FP8``), one per output
  (``FP8_PER_CHANNEL_PER_TOKEN``), one per block of 128 x 128 (``FP8_PB_WO``), or a power of two per
  32 inputs (``MXFP8``);
* ``weight [N, K / 2] u8`` in FP4 with ``weight_scale [N, K / 16]`` in FP8 and one
  ``weight_scale_2`` (``NVFP4``), or ``weight_scale [N, K / 32] u8``, powers of two (``mxfp4``).

Inputs are multiplied by ``pre_quant_scale [K]`` if present. A file's scales for inputs are ignored,
because activations are quantised dynamically.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from checkpoint_converters.quantised.groups import Groups
from checkpoint_converters.quantised.modules import FLOATS, Module, scale_type
from checkpoint_converters.quantised.packing import centred, unpack_words
from checkpoint_converters.quantised.said import Said
from checkpoint_converters.quantised.scheme import Layer, Scheme
from checkpoint_converters.quantised.small_floats import (
    FP8,
    read_fp8,
    read_mxfp4,
    read_mxfp8,
    read_nvfp4,
)
from checkpoint_converters.quantised.targets import LINEAR, setting_of
from trtspec.config.quantised import QuantisedTensor
from trtspec.config.storage import WeightStorage

METHOD = "modelopt"
FOUR_BITS = "W4A16_AWQ"
ALGORITHMS = (
    "W8A16", "W8A8_SQ_PER_CHANNEL", FOUR_BITS, "FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO",
    "fp8_pb_wo", "MXFP8", "NVFP4", "NVFP4_AWQ", "W4A16_NVFP4", "W4A8_NVFP4_FP8", "mxfp4",
    "W4A8_MXFP4_FP8",
)  # fmt: skip
_BLOCK = 128, 128
_OF_ALL = "weight_scale_2"
_MIXED, _LAYERS = "MIXED_PRECISION", "quantized_layers"
_SCALE, _INPUTS = "weight_scale", "pre_quant_scale"
_GROUP_SIZE = "group_size"


def read_modelopt(said: Said) -> Scheme:
    """Read the scheme of a ModelOpt export.

    Raises:
        CheckpointError: an unsupported algorithm, for all layers or one of them.
    """
    algorithm = said.choice("quant_algo", (*ALGORITHMS, _MIXED))
    usual = said.group_size(_GROUP_SIZE)
    sizes: dict[str, int | None] = {} if usual is None else {LINEAR: usual}
    for name, group in said.get("config_groups", {}).items():
        weights = Said(said.file, f"{said.key}.config_groups.{name}", group.get("weights") or {})
        size = weights.group_size(_GROUP_SIZE)
        sizes |= {} if size is None else dict.fromkeys(group.get("targets", (LINEAR,)), size)
    if algorithm == _MIXED:
        layers = said.get(_LAYERS, {})
        found = {name: fields.get("quant_algo") for name, fields in layers.items()}
        for name, each in found.items():
            if each not in ALGORITHMS:
                raise said.refuse(
                    f"says {each!r} of layer {name}; supported: {', '.join(ALGORITHMS)}"
                )
            own = Said(said.file, f"{said.key}.{_LAYERS}.{name}", layers[name])
            size = own.group_size(_GROUP_SIZE)
            sizes |= {} if size is None else {name: size}
    roles = ("weight", _INPUTS, _OF_ALL, "input_scale")
    return Scheme(f"ModelOpt, {algorithm}", _SCALE, roles, lambda module: _read(module, sizes))


def _read(module: Module, sizes: Mapping[str, int | None]) -> Layer:
    weight = module.part("weight", ("I8", "U8", FP8), 2)
    rows, k = weight.shape
    scale = module.parts[_SCALE]
    scaled, of_nvfp4 = module.has(_INPUTS), scale.dtype == FP8
    if scaled:
        module.part(_INPUTS, FLOATS, 1)
        module.require_shape(_INPUTS, (2 * k if of_nvfp4 else k,))
    if of_nvfp4:
        module.part(_OF_ALL, FLOATS, len(module.parts[_OF_ALL].shape) if module.has(_OF_ALL) else 0)
        return read_nvfp4(module, "weight", _SCALE, _nvfp4_scales, _inputs if scaled else None)
    if weight.dtype == FP8 and scale.dtype == "U8":
        return read_mxfp8(module, _SCALE)
    if weight.dtype == FP8:
        in_blocks = scale.shape not in ((), (1,), (rows,), (rows, 1))
        return read_fp8(module, _SCALE, _BLOCK if in_blocks else None)
    if scale.dtype == "U8":
        return read_mxfp4(module, "weight", _SCALE)
    if weight.dtype == "I8":
        module.part(_SCALE, FLOATS, 1)
        module.require_shape(_SCALE, (rows,))
        storage = WeightStorage(8, input_scales=scaled)
        return Layer((rows, k), storage, lambda: _unpack(module, 8, Groups(k, 0)))
    n, count = 2 * rows, module.part(_SCALE, FLOATS, 2).shape[1]
    module.require_shape(_SCALE, (n, count))
    groups = module.groups(_SCALE, k, count, setting_of(module.name, sizes))
    storage = WeightStorage(4, groups.size, scale_type(module.parts[_SCALE]), input_scales=scaled)
    return Layer((n, k), storage, lambda: _unpack(module, 4, groups))


def _unpack(module: Module, bits: int, groups: Groups) -> QuantisedTensor:
    values = module.parts["weight"].read()
    if bits == 4:
        halves = unpack_words(values.t(), bits).t()  # of a sign each: 8 .. 15 stand for -8 .. -1
        values = centred(halves ^ 8, bits).contiguous()
    scales = module.finite(_SCALE).view(len(values), -1)
    inputs = _inputs(module) if module.has(_INPUTS) else None
    return QuantisedTensor(values, groups.even(scales), input_scales=inputs)


def _inputs(module: Module) -> Tensor:
    return module.finite(_INPUTS)


def _nvfp4_scales(module: Module) -> Tensor:
    return module.finite(_SCALE) * module.one_value(_OF_ALL)


def four_bit_layer(
    values: Tensor, scales: Tensor, input_scales: Tensor | None = None
) -> dict[str, Tensor]:
    """The tensors of a 4-bit layer, by role, as `read_modelopt` reads them.

    Args:
        values: ``[N, K] i8`` from -8 to 7; N is even.
        scales: ``[N, G]`` floats, for groups of K / G inputs.
        input_scales: ``[K]`` floats, or None.
    """
    halves = (values & 15).to(torch.uint8)
    parts = {"weight": halves[0::2] | halves[1::2] << 4, _SCALE: scales}
    return parts if input_scales is None else {**parts, _INPUTS: input_scales}
