"""Filling networks from a checkpoint's tensors by internal names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from trtspec.errors import CheckpointError
from trtspec.models.linear import Linear, dequantized

SCALE_SUFFIX = "_scale"
"""Behind the name of an int8 weight: that of its scales, one for each output."""

_FUSED = {"qkv": ("q", "k", "v"), "kv": ("k", "v"), "gate_up": ("gate", "up")}
"""Which checkpoint tensors a fused layer holds, in the order of its outputs."""


def read_weight(tensors: Mapping[str, Tensor], name: str) -> Tensor:
    """A tensor by its internal name; CheckpointError if the checkpoint lacks it."""
    try:
        return tensors[name]
    except KeyError:
        raise CheckpointError(f"the checkpoint has no tensor {name}") from None


def read_floats(tensors: Mapping[str, Tensor], name: str) -> Tensor:
    """The same as floats, whatever it is stored in."""
    weight = read_weight(tensors, name)
    if weight.dtype != torch.int8:
        return weight
    return dequantized(weight, read_weight(tensors, name + SCALE_SUFFIX))


def load_linear(linear: Linear, tensors: Mapping[str, Tensor], sources: Sequence[str]) -> None:
    """Fill a linear layer from ``{source}.weight`` of each source, in the order of its outputs, and
    ``{source}.bias`` if it has biases.

    Raises:
        CheckpointError: a tensor is missing, or has values that 8 bits cannot hold.
    """
    weights, scales = [], []
    for source in sources:
        name = f"{source}.weight"
        weight = read_weight(tensors, name)
        scale = None
        if weight.dtype == torch.int8:
            scale = read_weight(tensors, name + SCALE_SUFFIX)
            _require_finite(scale, name + SCALE_SUFFIX)
        elif linear.layout.quantizes:
            _require_finite(weight, name)
        weights.append(weight)
        scales.append(scale)
    has_bias = linear.bias is not None
    biases = [read_weight(tensors, f"{source}.bias") for source in sources] if has_bias else []
    linear.load(weights, biases, scales)


def load_layers(layers: nn.ModuleList, tensors: Mapping[str, Tensor]) -> None:
    """Fill the norms and linear layers of decoder layers from tensors named ``layers.{i}.*``."""
    for buffer_name, buffer in layers.named_buffers():
        if buffer_name.endswith("norm.weight"):
            buffer.copy_(read_weight(tensors, f"layers.{buffer_name}"))
    for module_name, module in layers.named_modules():
        if isinstance(module, Linear):
            parent, _, fused = module_name.rpartition(".")
            parts = _FUSED.get(fused, (fused,))
            load_linear(module, tensors, [f"layers.{parent}.{part}" for part in parts])


def _require_finite(tensor: Tensor, name: str) -> None:
    if not torch.isfinite(tensor).all():
        count = int((~torch.isfinite(tensor)).sum())
        raise CheckpointError(
            f"the checkpoint's tensor {name} has {count} values that are NaN or infinite; such "
            "weights cannot be quantised to int8"
        )
