"""Granite 3: Llama with factors on the embedding, the scores, the residuals and the logits."""

from __future__ import annotations

from typing import Any

from checkpoint_converters.families.family import Family
from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.hf_decoder import HF_DECODER, model_fields, read_layer, repeat_layer
from trtspec.config.embedding_spec import EmbeddingSpec, HeadSpec


def _fields(hf: HfConfig) -> dict[str, Any]:
    bias = hf.get("attention_bias", False)
    layer = read_layer(hf, default_kv_heads=None).with_mixer(
        bias=bias, output_bias=bias, scale=_factor(hf, "attention_multiplier")
    )
    layer = layer.with_ffn(bias=hf.get("mlp_bias", False))
    layer = layer.scaled(_factor(hf, "residual_multiplier"))
    tied = hf.get("tie_word_embeddings", False)
    return model_fields(
        hf,
        repeat_layer(hf, layer),
        embedding=EmbeddingSpec(_factor(hf, "embedding_multiplier")),
        head=HeadSpec(tied, scale=1 / _factor(hf, "logits_scaling")),
    )


def _factor(hf: HfConfig, key: str) -> float:
    value = hf.get(key, 1.0)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise hf.refuse(f"{key} is {value!r}; it must be above 0")
    return float(value)


GRANITE = Family("GraniteForCausalLM", "granite", _fields, HF_DECODER)
