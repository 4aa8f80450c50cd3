"""compressed-tensors with whole numbers, as llm-compressor writes it.

A layer has ``weight_scale [N, G]`` and ``weight [N, K] i8`` (formats ``int-quantized`` and
``naive-quantized``), or ``weight_packed [N, K bits / 32] i32``, lowest bits first, of numbers to
which ``2^(bits - 1)`` was added (``pack-quantized``). ``weight_zero_point [N, G]``, packed along N
there, is subtracted from the numbers; a layer that lacks it has zeros. ``weight_g_idx [K]`` is the
group of each input feature. ``config_groups`` say which layers are of how many bits, by name,
pattern or class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from checkpoint_converters.quantised.groups import Groups
from checkpoint_converters.quantised.modules import FLOATS, Module, scale_type
from checkpoint_converters.quantised.numbers import Numbers
from checkpoint_converters.quantised.packing import WORD_BITS, centred, unpack_words
from checkpoint_converters.quantised.said import Said
from checkpoint_converters.quantised.scheme import Layer, Scheme
from checkpoint_converters.quantised.targets import setting_of
from trtspec.config.storage import WeightStorage

METHOD = "compressed-tensors"
FORMATS = ("pack-quantized", "int-quantized", "naive-quantized")
BITS = (4, 8)
_MIXED = "mixed-precision"
_GROUP, _STRATEGIES = "group", ("tensor", "channel", "group")
_SCALE, _ZERO, _INDEX = "weight_scale", "weight_zero_point", "weight_g_idx"
_PACKED = "weight_packed"
# What is said of inputs and outputs: they are not rounded by it here.
_LEFT_OUT = ("input_scale", "input_zero_point", "output_scale", "output_zero_point")
_ROLES = ("weight", _PACKED, "weight_shape", _ZERO, _INDEX, *_LEFT_OUT)


def read_compressed_tensors(said: Said) -> Scheme:
    """Raises:
    CheckpointError: a format, strategy, type or number of bits that is not read.
    """
    said.choice("format", (*FORMATS, _MIXED))
    sparsity = said.get("sparsity_config", {})
    if sparsity.get("format", "dense") != "dense":
        raise said.refuse(f"has sparse weights ({sparsity['format']}); supported: dense ones")
    groups = said.get("config_groups", {})
    found: dict[str, _Weights] = {}
    for name, fields in groups.items():
        weights = _weights(Said(said.file, f"{said.key}.config_groups.{name}", fields))
        found |= dict.fromkeys(fields.get("targets", []), weights)
    if not found:
        raise said.refuse("has no config_groups with targets; quantise the model anew")
    return Scheme(METHOD, _SCALE, _ROLES, lambda module: _read(module, said, found))


@dataclass(frozen=True)
class _Weights:
    """group_size: of strategy ``group``, None where it is not said; 0 of the others."""

    bits: int
    group_size: int | None
    symmetric: bool
    sorted: bool


def _weights(group: Said) -> _Weights:
    group.choice("format", FORMATS, FORMATS[0])
    fields = group.get("weights")
    if not isinstance(fields, dict):
        raise group.refuse("says nothing of weights; supported: quantised weights")
    said = Said(group.file, f"{group.key}.weights", fields)
    said.choice("type", ("int",), "int")
    size = said.group_size("group_size")
    strategy = said.choice("strategy", _STRATEGIES, _GROUP if size else "tensor")
    size = size if strategy == _GROUP else 0
    bits = said.choice("num_bits", BITS, 8)
    order = said.get("actorder") in ("group", "dynamic", True)
    return _Weights(bits, size, bool(said.get("symmetric", True)), order)


def _read(module: Module, said: Said, found: Mapping[str, _Weights]) -> Layer:
    weights = setting_of(module.name, found)
    if weights is None:
        raise said.refuse(
            f"has no config group for layer {module.name}, which has a {_SCALE}; its targets are "
            f"{', '.join(found)}"
        )
    bits, packed = weights.bits, module.has(_PACKED)
    if packed:
        n, words = module.part(_PACKED, ("I32",), 2).shape
        k = words * WORD_BITS // bits
    else:
        n, k = module.part("weight", ("I8",), 2).shape
    scale = module.part(_SCALE, FLOATS, len(module.parts[_SCALE].shape))
    count = scale.shape[1] if len(scale.shape) == 2 else 1
    if scale.shape not in ((n, count), (n,), (1,), ()):
        raise module.refuse(_SCALE, f"shape {list(scale.shape)}", f"have {n} rows, or be one value")
    groups = module.groups(_SCALE, k, count, weights.group_size)
    if not weights.symmetric and module.has(_ZERO):
        module.part(_ZERO, ("I32",) if packed else ("I8", "I32"), 2)
        rows = -(-n * bits // WORD_BITS) if packed else n
        module.require_shape(_ZERO, (rows, count))
    ordered = weights.sorted and count > 1
    if ordered or module.has(_INDEX):
        module.part(_INDEX, ("I32", "I64"), 1)
        module.require_shape(_INDEX, (k,))
    storage = WeightStorage(
        bits, groups.size, scale_type(scale), zeros=not weights.symmetric, permuted=ordered
    )
    return Layer((n, k), storage, lambda: _unpack(module, weights, n, groups, ordered))


def _unpack(module: Module, weights: _Weights, n: int, groups: Groups, ordered: bool) -> Numbers:
    bits = weights.bits
    if module.has(_PACKED):
        values = centred(unpack_words(module.parts[_PACKED].read(), bits), bits)
    else:
        values = module.parts["weight"].read()
    if module.has("weight_shape"):
        said = tuple(module.parts["weight_shape"].read().tolist())
        if said != tuple(values.shape):
            raise module.refuse("weight_shape", str(list(said)), f"be {list(values.shape)}")
    scales = module.finite(_SCALE).reshape(-1, groups.count).expand(n, groups.count).contiguous()
    zeros = None if weights.symmetric else torch.zeros(n, groups.count, dtype=torch.int8)
    if module.has(_ZERO):
        zeros = _zeros(module, bits, n)
    if weights.symmetric and zeros is not None:
        # Some writers keep them, packed or not.
        if zeros.any() and module.parts[_ZERO].read().any():
            raise module.refuse(_ZERO, "zero points", "be zero, as symmetric says")
        zeros = None
    zeros = None if zeros is None else groups.even(zeros)
    order = _order(module, groups, ordered)
    return Numbers(values, groups.even(scales), zeros, permutation=order)


def _zeros(module: Module, bits: int, n: int) -> Tensor:
    stored = module.parts[_ZERO].read()
    if module.has(_PACKED) and stored.dtype == torch.int32:
        stored = centred(unpack_words(stored.t(), bits), bits).t()[:n]
    return stored.to(torch.int8).contiguous()


def _order(module: Module, groups: Groups, ordered: bool) -> Tensor | None:
    if not module.has(_INDEX):
        return None
    order = module.order(_INDEX, groups)
    if order is not None and not ordered:
        raise module.refuse(_INDEX, "input features in no order", "rise, as actorder says")
    if order is None and ordered:
        return torch.arange(module.parts[_INDEX].shape[0], dtype=torch.int32)
    return order
