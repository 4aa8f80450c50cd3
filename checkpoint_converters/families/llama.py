"""Llama 2 and 3.x."""

from __future__ import annotations

from typing import Any

from checkpoint_converters.families.family import Family, GgufNames
from checkpoint_converters.gguf_decoder import GGUF_DECODER, PAIRED
from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.hf_decoder import HF_DECODER, model_fields, read_layer, repeat_layer


def _fields(hf: HfConfig) -> dict[str, Any]:
    bias = hf.get("attention_bias", False)
    layer = read_layer(hf, default_kv_heads=None).with_mixer(bias=bias, output_bias=bias)
    layer = layer.with_ffn(bias=hf.get("mlp_bias", False))
    return model_fields(hf, repeat_layer(hf, layer))


LLAMA = Family(
    "LlamaForCausalLM",
    "llama",
    _fields,
    HF_DECODER,
    draft_defaults={},
    # Mistral's models go by this name too: llama.cpp runs them without their window.
    gguf=GgufNames("llama", GGUF_DECODER, paired=PAIRED),
    defaults={"bos_token_id": 1, "eos_token_id": 2},
)
