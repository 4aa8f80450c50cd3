"""Small random Hugging Face models, one per architecture and rope type that is supported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCAB = 203  # not a multiple of a packed panel

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 88,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "attn_implementation": "eager",
}


def _rope(kind: str, **values: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **values}}


_YARN = {"factor": 4.0, "original_max_position_embeddings": 16}

CASES: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**_SIZES)),
    "llama3_tied": lambda: LlamaForCausalLM(
        LlamaConfig(
            **_SIZES,
            tie_word_embeddings=True,
            **_rope(
                "llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=16,
            ),
        )
    ),
    "llama_linear_biases": lambda: LlamaForCausalLM(
        LlamaConfig(**_SIZES, attention_bias=True, mlp_bias=True, **_rope("linear", factor=3.0))
    ),
    "llama_yarn": lambda: LlamaForCausalLM(LlamaConfig(**_SIZES, **_rope("yarn", **_YARN))),
    "llama_yarn_all_options": lambda: LlamaForCausalLM(
        LlamaConfig(
            **_SIZES,
            **_rope(
                "yarn",
                **_YARN,
                beta_fast=8.0,
                beta_slow=0.5,
                mscale=0.7,
                mscale_all_dim=1.3,
                truncate=False,
            ),
        )
    ),
    "mistral_window": lambda: MistralForCausalLM(MistralConfig(**_SIZES, sliding_window=8)),
    "qwen2_tied": lambda: Qwen2ForCausalLM(Qwen2Config(**_SIZES, tie_word_embeddings=True)),
    "qwen2_one_window_layer": lambda: Qwen2ForCausalLM(
        Qwen2Config(**_SIZES, use_sliding_window=True, sliding_window=8, max_window_layers=1)
    ),
    "qwen3": lambda: Qwen3ForCausalLM(
        Qwen3Config(**_SIZES, head_dim=32, **_rope("yarn", **_YARN, attention_factor=0.9))
    ),
}


def tiny_model(case: str) -> PreTrainedModel:
    """The float32 model of a case, its weights large enough for every part to show in logits."""
    torch.manual_seed(sum(map(ord, case)))
    model = CASES[case]().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight"):
                weight.uniform_(0.5, 1.5)
            else:
                weight.normal_(std=0.125 if weight.dim() == 2 else 0.5)
    return model
