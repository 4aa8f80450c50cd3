"""Gemma: (1 + w) norms, an embedding scaled by the root of its width, GELU gates, a tied head."""

from __future__ import annotations

from typing import Any

from checkpoint_converters.families.family import Family, GgufNames
from checkpoint_converters.gguf_decoder import GGUF_DECODER
from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.hf_decoder import (
    HF_DECODER,
    model_fields,
    read_activation,
    read_layer,
    repeat_layer,
)
from trtspec.config.embedding_spec import EmbeddingSpec, HeadSpec
from trtspec.config.layer import LayerSpec
from trtspec.config.norm_spec import NormSpec


def gemma_layer(hf: HfConfig, activation: str, default_kv_heads: int) -> LayerSpec:
    """The layer of all generations."""
    if hf.get("use_bidirectional_attention", False):
        raise hf.refuse("use_bidirectional_attention true is not supported; supported: false")
    bias = hf.get("attention_bias", False)
    norm = NormSpec(hf.get("rms_norm_eps", 1e-6), one_plus=True)
    layer = read_layer(hf, default_kv_heads, head_dim=256, activation=activation, norm=norm)
    return layer.with_mixer(bias=bias, output_bias=bias)


def gemma_ends(hf: HfConfig) -> dict[str, Any]:
    """The embedding and the head of all generations."""
    cap = hf.get("final_logit_softcapping")
    return {
        "embedding": EmbeddingSpec(hf.require("hidden_size") ** 0.5, scales_borrowed=True),
        "head": HeadSpec(hf.get("tie_word_embeddings", True), soft_cap=cap),
    }


def _fields(hf: HfConfig) -> dict[str, Any]:
    # The first releases say gelu, and were trained with the approximation by tanh.
    key = "hidden_act" if hf.get("hidden_activation") is None else "hidden_activation"
    legacy = hf.get(key) == "gelu"
    activation = "gelu_tanh" if legacy else read_activation(hf, key, "gelu_pytorch_tanh")
    layers = repeat_layer(hf, gemma_layer(hf, activation, default_kv_heads=16))
    return model_fields(hf, layers, **gemma_ends(hf))


GEMMA = Family(
    "GemmaForCausalLM",
    "gemma",
    _fields,
    HF_DECODER,
    gguf=GgufNames("gemma", GGUF_DECODER, norms_plus_one=True),
    defaults={"bos_token_id": 2, "eos_token_id": 1},
)
