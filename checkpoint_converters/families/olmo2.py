"""OLMo 2: norms after attention and feed-forward, and over all queries and all keys."""

from __future__ import annotations

from typing import Any

from checkpoint_converters.families.family import Family, GgufNames
from checkpoint_converters.gguf_decoder import GGUF_DECODER
from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.hf_decoder import (
    HF_DECODER,
    model_fields,
    read_layer,
    read_norm,
    repeat_layer,
)
from trtspec.config.layer import LayerSpec

_L = "model.layers.{i}."

OLMO_DECODER = HF_DECODER.renamed(
    {
        "layers.{i}.attn_out_norm.weight": _L + "post_attention_layernorm.weight",
        "layers.{i}.mlp_out_norm.weight": _L + "post_feedforward_layernorm.weight",
    }
)


def olmo_layer(hf: HfConfig) -> LayerSpec:
    """The layer of OLMo 2 and 3, without a window."""
    bias = hf.get("attention_bias", False)
    layer = read_layer(hf, default_kv_heads=None, norm=read_norm(hf, 1e-5))
    layer = layer.with_mixer(bias=bias, output_bias=bias, qk_norm=layer.norm, qk_norm_over="all")
    return layer.with_norms("after")


def _fields(hf: HfConfig) -> dict[str, Any]:
    return model_fields(hf, repeat_layer(hf, olmo_layer(hf)))


IN_GGUF = GgufNames("olmo2", GGUF_DECODER)

OLMO2 = Family(
    "Olmo2ForCausalLM",
    "olmo2",
    _fields,
    OLMO_DECODER,
    gguf=IN_GGUF,
    defaults={"eos_token_id": 50279},
)
