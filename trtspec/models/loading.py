"""Loads networks from a checkpoint's tensors by internal names."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from trtspec.config.quantised import Weights
from trtspec.formats.stored import StoredWeight, read_tensor
from trtspec.models.causal_conv import CausalConv
from trtspec.models.feed_forwards.experts import FIRST_EXPERT, ExpertLinear
from trtspec.models.linear import Linear
from trtspec.models.mixers.latent_attention import HeadMatrices

FUSED = {
    "qkv": ("q", "k", "v"),
    "qk": ("q", "k"),
    "kv": ("k", "v"),
    "q_kv_a": ("q_a", "kv_a"),
    "qkvz": ("qkv", "z"),
    "ba": ("b", "a"),
    "gate_up": ("gate", "up"),
}
"""Which checkpoint tensors a fused layer holds, in output order."""
_ALONE = (
    "norm.weight", "norm.bias", "choice_bias", "output_scale", "attn.sinks", "a_log", "dt_bias",
    "attn.skip", FIRST_EXPERT,
)  # fmt: skip
"""Suffixes of the names of buffers outside of linear layers."""


def load_linear(linear: Linear, tensors: Weights, sources: Sequence[str]) -> None:
    """Load a linear layer from ``{source}.weight`` of each source, in output order, and
    ``{source}.bias`` if it has biases.

    Raises:
        CheckpointError: a tensor is missing, or has values that the layer's format cannot hold.
    """
    weights = [StoredWeight.read(tensors, f"{source}.weight") for source in sources]
    has_bias = linear.bias is not None
    biases = [read_tensor(tensors, f"{source}.bias") for source in sources] if has_bias else []
    linear.load(weights, biases)


def load_experts(layer: ExpertLinear, tensors: Weights, place: str, parts: Sequence[str]) -> None:
    """Load the layer of each expert e from ``{place}.{e}.{part}.weight`` of each part, and biases.

    Raises:
        CheckpointError: see `load_linear`.
    """
    for expert in range(layer.num_experts):
        sources = [f"{place}.{expert}.{part}" for part in parts]
        weights = [StoredWeight.read(tensors, f"{source}.weight") for source in sources]
        has_bias = layer.bias is not None
        biases = [read_tensor(tensors, f"{each}.bias") for each in sources] if has_bias else []
        layer.load(expert, weights, biases)


def load_layers(layers: nn.ModuleList, tensors: Weights) -> None:
    """Load the norms and linear layers of decoder layers from tensors named ``layers.{i}.*``."""
    for buffer_name, buffer in layers.named_buffers():
        if buffer_name.endswith(_ALONE):
            buffer.copy_(read_tensor(tensors, f"layers.{buffer_name}"))
    for module_name, module in layers.named_modules():
        parent, _, fused = module_name.rpartition(".")
        parts = FUSED.get(fused, (fused,))
        if isinstance(module, ExpertLinear):
            load_experts(module, tensors, f"layers.{parent}", parts)
        elif isinstance(module, Linear):
            load_linear(module, tensors, [f"layers.{parent}.{part}" for part in parts])
        elif isinstance(module, CausalConv):
            module.load(tensors, f"layers.{module_name}")
        elif isinstance(module, HeadMatrices):
            module.load(StoredWeight.read(tensors, f"layers.{module_name}.weight"))
