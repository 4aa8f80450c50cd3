"""Filling networks from a checkpoint's tensors by internal names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from trtspec.formats.stored import StoredWeight, read_tensor
from trtspec.models.linear import Linear

_FUSED = {"qkv": ("q", "k", "v"), "kv": ("k", "v"), "gate_up": ("gate", "up")}
"""Which checkpoint tensors a fused layer holds, in the order of its outputs."""


def load_linear(linear: Linear, tensors: Mapping[str, Tensor], sources: Sequence[str]) -> None:
    """Fill a linear layer from ``{source}.weight`` of each source, in the order of its outputs, and
    ``{source}.bias`` if it has biases.

    Raises:
        CheckpointError: a tensor is missing, or has values that the layer's format cannot hold.
    """
    weights = [StoredWeight.read(tensors, f"{source}.weight") for source in sources]
    has_bias = linear.bias is not None
    biases = [read_tensor(tensors, f"{source}.bias") for source in sources] if has_bias else []
    linear.load(weights, biases)


def load_layers(layers: nn.ModuleList, tensors: Mapping[str, Tensor]) -> None:
    """Fill the norms and linear layers of decoder layers from tensors named ``layers.{i}.*``."""
    for buffer_name, buffer in layers.named_buffers():
        if buffer_name.endswith(("norm.weight", "norm.bias")):
            buffer.copy_(read_tensor(tensors, f"layers.{buffer_name}"))
    for module_name, module in layers.named_modules():
        if isinstance(module, Linear):
            parent, _, fused = module_name.rpartition(".")
            parts = _FUSED.get(fused, (fused,))
            load_linear(module, tensors, [f"layers.{parent}.{part}" for part in parts])
