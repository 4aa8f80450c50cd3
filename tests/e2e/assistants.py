"""Assistants for tiny targets that share K/V: random ones, and one that is always right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from transformers import PreTrainedModel

from .families import SIZES, VOCAB, family_model

WINDOW = 9


def assistant(folder: Path, **shape: Any) -> dict[str, Any]:
    return {"method": "assistant", "model": str(folder), **shape}


def random_assistant(
    target: PreTrainedModel, clusters: int = 0, window: int = WINDOW, hidden_size: int = 32
) -> Any:
    """transformers' model, every part of which shows in its logits."""
    torch.manual_seed(11)
    text = hf.Gemma4TextConfig(
        **{**SIZES, "hidden_size": hidden_size, "num_hidden_layers": 3},
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        head_dim=24,
        global_head_dim=32,
        sliding_window=window,
        hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=0,
    )
    config = hf.Gemma4AssistantConfig(
        text_config=text,
        backbone_hidden_size=target.config.hidden_size,
        use_ordered_embeddings=clusters > 0,
        num_centroids=clusters or 1,
        centroid_intermediate_top_k=2 if clusters else 1,
    )
    model: Any = hf.Gemma4AssistantForCausalLM(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight"):
                weight.uniform_(0.5, 1.5)
            else:
                weight.normal_(std=0.2)
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):
                buffer.uniform_(0.7, 1.2)
            elif name.endswith("token_ordering"):
                buffer.copy_(torch.randperm(VOCAB))
    return model


def save(model: PreTrainedModel, folder: Path, window: int = WINDOW) -> Path:
    """``window``: what config.json says of it."""
    model.save_pretrained(folder)
    file = folder / "config.json"
    config = json.loads(file.read_text())
    config["text_config"]["sliding_window"] = window
    file.write_text(json.dumps(config))
    return folder


def markov_target() -> PreTrainedModel:
    """A target without an effect of its layers: what it says next follows from its newest token."""
    model = family_model("gemma4", tie_word_embeddings=False)
    _silence(model)
    return model


def knowing_assistant(target: PreTrainedModel, reads_token: bool = True) -> Any:
    """Says of its input what `markov_target` says of a token; its input is the newest token or, if
    not ``reads_token``, the state before it."""
    model, hidden = random_assistant(target, hidden_size=target.config.hidden_size), 64
    _silence(model)
    with torch.no_grad():
        model.pre_projection.weight.zero_()
        model.pre_projection.weight[:, (0 if reads_token else hidden) :][:, :hidden] = torch.eye(64)
        model.post_projection.weight.copy_(torch.eye(hidden))
        model.model.norm.weight.copy_(target.model.norm.weight)
        model.lm_head.weight.copy_(target.lm_head.weight)
    return model


def _silence(model: PreTrainedModel) -> None:
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight", "per_layer_projection.weight")):
                weight.zero_()
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):
                buffer.fill_(1)
