"""Prediction modules as Qwen3-Next and Qwen3.5 store them: a layer with attention, of transformers'
own class, and what stands before and behind it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_layers import MtpLayer

_WEIGHTS = "model.safetensors"
_PARTS = {
    "eh_proj.": "fc.",
    "enorm.": "pre_fc_norm_embedding.",
    "hnorm.": "pre_fc_norm_hidden.",
    "post_norm.": "norm.",
}


@torch.no_grad()
def hybrid_module(hf: PreTrainedModel, seed: int = 1) -> MtpLayer:
    """A random one, like the target's last layer, which has attention."""
    assert hf.config.layer_types[-1] == "full_attention"
    classes = type(hf.model.layers[-1]), type(hf.model.norm)
    module = MtpLayer(hf.config, *classes, len(hf.model.layers) - 1).eval()
    noise = torch.Generator().manual_seed(seed)
    for weight in module.parameters():
        scale = 0.15 if weight.dim() > 1 else 0.3
        weight.copy_(scale * torch.randn(weight.shape, generator=noise))
    return module


def add_hybrid_modules(
    hf: PreTrainedModel, folder: Path, modules: Sequence[MtpLayer], stacked: bool = False
) -> Path:
    """The target's folder with these in it; they share all but their layers, which are the first
    one's parts. ``stacked``: experts lie in one tensor."""
    hf.save_pretrained(folder)
    tensors = load_file(folder / _WEIGHTS)
    for i, module in enumerate(modules):
        for name, weight in module.state_dict().items():
            part = next((part for part in _PARTS if name.startswith(part)), None)
            if part is not None:
                tensors.setdefault("mtp." + name.replace(part, _PARTS[part]), weight)
                continue
            full = name.replace("mtp_block.", f"mtp.layers.{i}.")
            if stacked or ".experts." not in full:
                tensors[full] = weight
            else:
                tensors |= _apart(full, weight)
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    save_file(copies, folder / _WEIGHTS, {"format": "pt"})
    return folder


def _apart(name: str, weights: Tensor) -> dict[str, Tensor]:
    place, _, stack = name.rpartition(".")
    parts = ("gate_proj", "up_proj") if stack == "gate_up_proj" else ("down_proj",)
    return {
        f"{place}.{e}.{part}.weight": half
        for e, weight in enumerate(weights)
        for part, half in zip(parts, weight.chunk(len(parts)), strict=True)
    }
