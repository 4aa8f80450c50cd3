"""compressed-tensors, as llm-compressor writes it.

An integer layer has ``weight_scale [N, G]`` and ``weight [N, K] i8`` (formats ``int-quantized`` and
``naive-quantized``), or ``weight_packed [N, K bits / 32] i32``, lowest bits first, of values plus
``2^(bits - 1)`` (``pack-quantized``), with N and K in ``weight_shape [2]``, because the last word
may be padded. ``weight_zero_point [N, G]``, packed along N in the latter case, is subtracted from
the values; without it zero points are 0. Scales and zero points of a single group may be ``[N]``,
and a single value ``[1]`` or ``[]``. ``weight_g_idx [K]`` is the group of each input feature.
``config_groups`` give the number of bits of layers by name, pattern or class.

A float layer has ``weight [N, K]`` in FP8 (``float-quantized``, ``naive-quantized``) with one
``weight_scale``, one per output, or one per block (``block_structure``); or ``weight_packed [N, K /
2] u8`` in FP4 with ``weight_scale [N, K / 16]`` in FP8, divided by ``weight_global_scale``
(``nvfp4-pack-quantized``), or with ``weight_scale [N, K / 32] u8``, powers of two
(``mxfp4-pack-quantized``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from checkpoint_converters.quantised.groups import Groups
from checkpoint_converters.quantised.modules import FLOATS, Module, scale_type
from checkpoint_converters.quantised.packing import WORD_BITS, centred, unpack_words
from checkpoint_converters.quantised.said import Said
from checkpoint_converters.quantised.scheme import Layer, Scheme
from checkpoint_converters.quantised.small_floats import read_fp8, read_mxfp4, read_nvfp4
from checkpoint_converters.quantised.targets import setting_of
from trtspec.config.quantised import QuantisedTensor
from trtspec.config.storage import WeightStorage

METHOD = "compressed-tensors"
FORMATS = (
    "pack-quantized", "int-quantized", "naive-quantized", "float-quantized", "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
)  # fmt: skip
BITS = (4, 8)
_MIXED = "mixed-precision"
_GROUP, _STRATEGIES = "group", ("tensor", "channel", "group")
_IN_TWO = "tensor_group"
_OF_FLOATS = {8: ("tensor", "channel", "block"), 4: (_IN_TWO, _GROUP)}
_SCALE, _ZERO, _INDEX = "weight_scale", "weight_zero_point", "weight_g_idx"
_PACKED, _SHAPE = "weight_packed", "weight_shape"
# What is said of inputs and outputs: they are not rounded by it here.
_LEFT_OUT = (
    "input_scale", "input_zero_point", "input_global_scale", "output_scale", "output_zero_point",
)  # fmt: skip
_OF_ALL = "weight_global_scale"
_ROLES = ("weight", _PACKED, _SHAPE, _ZERO, _INDEX, _OF_ALL, *_LEFT_OUT)


def read_compressed_tensors(said: Said) -> Scheme:
    """Read the scheme of a compressed-tensors checkpoint.

    Raises:
        CheckpointError: an unsupported format, strategy, type or number of bits.
    """
    said.choice("format", (*FORMATS, _MIXED))
    sparsity = said.get("sparsity_config", {})
    if sparsity.get("format", "dense") != "dense":
        raise said.refuse(f"has sparse weights ({sparsity['format']}); supported: dense ones")
    groups = said.get("config_groups", {})
    found: dict[str, _Weights | _Floats] = {}
    for name, fields in groups.items():
        weights = _weights(Said(said.file, f"{said.key}.config_groups.{name}", fields))
        found |= dict.fromkeys(fields.get("targets", []), weights)
    if not found:
        raise said.refuse("has no config_groups with targets; quantise the model anew")
    inputs = _Inputs({})
    return Scheme(METHOD, _SCALE, _ROLES, lambda module: _read(module, said, found, inputs))


@dataclass(frozen=True)
class _Weights:
    """group_size: for strategy ``group``, None if not given; 0 for other strategies."""

    bits: int
    group_size: int | None
    symmetric: bool
    sorted: bool


@dataclass(frozen=True)
class _Floats:
    """bits: 8 or 4. block: outputs and inputs that share an FP8 scale; None: one scale in all, or
    one per output. in_two: whether FP4 also has a global scale, as in NVFP4."""

    bits: int
    block: tuple[int, int] | None
    in_two: bool

    def read(self, module: Module) -> Layer:
        if self.bits == 8:
            return read_fp8(module, _SCALE, self.block)
        if self.in_two:
            module.part(_OF_ALL, FLOATS, 1)
            return read_nvfp4(module, _PACKED, _SCALE, _nvfp4_scales)
        return read_mxfp4(module, _PACKED, _SCALE)


def _nvfp4_scales(module: Module) -> Tensor:
    return module.finite(_SCALE) / module.one_value(_OF_ALL)


def _floats(said: Said) -> _Floats:
    bits = said.choice("num_bits", BITS, 8)
    strategy = said.choice("strategy", _OF_FLOATS[bits], _OF_FLOATS[bits][0])
    block = said.pair("block_structure") if strategy == "block" else None
    return _Floats(bits, block, strategy == _IN_TWO)


def _weights(group: Said) -> _Weights | _Floats:
    group.choice("format", FORMATS, FORMATS[0])
    fields = group.get("weights")
    if not isinstance(fields, dict):
        raise group.refuse("says nothing of weights; supported: quantised weights")
    said = Said(group.file, f"{group.key}.weights", fields)
    if said.choice("type", ("int", "float"), "int") == "float":
        return _floats(said)
    size = said.group_size("group_size")
    strategy = said.choice("strategy", _STRATEGIES, _GROUP if size else "tensor")
    size = size if strategy == _GROUP else 0
    bits = said.choice("num_bits", BITS, 8)
    order = said.get("actorder") in ("group", "dynamic", True)
    return _Weights(bits, size, bool(said.get("symmetric", True)), order)


@dataclass(frozen=True)
class _Inputs:
    """The number of inputs of packed layers, as stored in their files. Layers that differ only in
    their index have the same number, so it is read for one of them; `_unpack` compares each."""

    known: dict[tuple[str, int, int], int]

    def of(self, module: Module, bits: int) -> int:
        n, words = module.part(_PACKED, ("I32",), 2).shape
        in_word = WORD_BITS // bits
        if not module.has(_SHAPE):
            return words * in_word
        module.part(_SHAPE, ("I64", "I32"), 1)
        module.require_shape(_SHAPE, (2,))
        kind = re.sub(r"\d+", "", module.name), n, words
        if kind not in self.known:
            rows, k = module.parts[_SHAPE].read().tolist()
            if rows != n or -(-k // in_word) != words:
                wanted = f"be [{n}, {words * in_word}], or up to {in_word - 1} inputs less"
                raise module.refuse(_SHAPE, str([rows, k]), wanted)
            self.known[kind] = k
        return self.known[kind]


def _read(
    module: Module, said: Said, found: Mapping[str, _Weights | _Floats], inputs: _Inputs
) -> Layer:
    weights = setting_of(module.name, found)
    if weights is None:
        raise said.refuse(
            f"has no config group for layer {module.name}, which has a {_SCALE}; its targets are "
            f"{', '.join(found)}"
        )
    if isinstance(weights, _Floats):
        return weights.read(module)
    bits, packed = weights.bits, module.has(_PACKED)
    if packed:
        n, k = module.part(_PACKED, ("I32",), 2).shape[0], inputs.of(module, bits)
    else:
        n, k = module.part("weight", ("I8",), 2).shape
    scale = module.part(_SCALE, FLOATS, len(module.parts[_SCALE].shape))
    count = scale.shape[1] if len(scale.shape) == 2 else 1
    if scale.shape not in _shapes(n, count):
        raise module.refuse(_SCALE, f"shape {list(scale.shape)}", f"have {n} rows, or be one value")
    groups = module.groups(_SCALE, k, count, weights.group_size)
    if not weights.symmetric and module.has(_ZERO):
        _require_zeros(module, bits, n, count)
    ordered = weights.sorted and count > 1
    if ordered or module.has(_INDEX):
        module.part(_INDEX, ("I32", "I64"), 1, "actorder")
        module.require_shape(_INDEX, (k,))
    storage = WeightStorage(
        bits, groups.size, scale_type(scale), zero_points=not weights.symmetric, permuted=ordered
    )
    return Layer((n, k), storage, lambda: _unpack(module, weights, n, groups, ordered))


def _unpack(
    module: Module, weights: _Weights, n: int, groups: Groups, ordered: bool
) -> QuantisedTensor:
    bits, count, shape = weights.bits, groups.count, [n, groups.inputs]
    if module.has(_PACKED):
        values = centred(unpack_words(module.parts[_PACKED].read(), bits), bits)
        values = values[:, : groups.inputs].contiguous()
    else:
        values = module.parts["weight"].read()
    if module.has(_SHAPE):
        said = module.parts[_SHAPE].read().tolist()
        if said != shape:
            raise module.refuse(_SHAPE, str(said), f"be {shape}")
    scales = module.finite(_SCALE).reshape(-1, count).expand(n, count).contiguous()
    zeros = None if weights.symmetric else groups.even(_zeros(module, bits, n, count))
    if weights.symmetric and module.has(_ZERO) and module.parts[_ZERO].read().any():
        # Some writers keep them, packed or not.
        _require_zeros(module, bits, n, count)
        if _zeros(module, bits, n, count).any():
            raise module.refuse(_ZERO, "zero points", "be zero, as symmetric says")
    order = _order(module, groups, ordered)
    return QuantisedTensor(values, groups.even(scales), zeros, permutation=order)


def _shapes(n: int, count: int) -> tuple[tuple[int, ...], ...]:
    """Shapes of scales or zero points: ``[N, G]``, for a single group also ``[N]``, or a single
    value."""
    return ((n, count), (n,), (1,), ()) if count == 1 else ((n, count),)


def _packs_zeros(module: Module) -> bool:
    """Whether zero points are packed like the values; a single value is not."""
    return module.has(_PACKED) and module.parts[_ZERO].dtype == "I32"


def _require_zeros(module: Module, bits: int, n: int, count: int) -> None:
    """Raise CheckpointError for zero points with another dtype or shape."""
    found = module.part(_ZERO, ("I8", "I32"), len(module.parts[_ZERO].shape)).shape
    rows = -(-n * bits // WORD_BITS) if _packs_zeros(module) else n
    allowed = _shapes(rows, count)[: 2 if _packs_zeros(module) else None]
    if found not in allowed:
        shapes = " or ".join(str(list(shape)) for shape in allowed)
        raise module.refuse(_ZERO, f"shape {list(found)}", f"have {shapes}")


def _zeros(module: Module, bits: int, n: int, count: int) -> Tensor:
    """Zero points ``[N, G] i8``."""
    if not module.has(_ZERO):
        return torch.zeros(n, count, dtype=torch.int8)
    stored = module.parts[_ZERO].read().reshape(-1, count)
    if _packs_zeros(module):
        return centred(unpack_words(stored.t().contiguous(), bits), bits).t()[:n].contiguous()
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    outside = stored[(stored < low) | (stored > high)]
    if len(outside):
        wanted = f"be from {low} to {high}, as values of {bits} bits are"
        raise module.refuse(_ZERO, f"a zero point of {int(outside[0])}", wanted)
    return stored.to(torch.int8).expand(n, count).contiguous()


def _order(module: Module, groups: Groups, ordered: bool) -> Tensor | None:
    if not module.has(_INDEX):
        return None
    order = module.order(_INDEX, groups)
    if order is not None and not ordered:
        raise module.refuse(_INDEX, "input features in no order", "rise, as actorder says")
    if order is None and ordered:
        return torch.arange(module.parts[_INDEX].shape[0], dtype=torch.int32)
    return order
