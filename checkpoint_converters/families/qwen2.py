"""Qwen2 and Qwen2.5: biases on q, k and v; a sliding window on some layers, if switched on."""

from __future__ import annotations

from typing import Any

from checkpoint_converters.families.family import Family, sliding_layers
from checkpoint_converters.hf_config import HfConfig, common_fields
from checkpoint_converters.hf_decoder import HF_DECODER


def qwen2_fields(hf: HfConfig) -> dict[str, Any]:
    """Fields of ModelConfig but for architecture and dtype."""
    if hf.get("use_mrope", False):
        raise hf.refuse("use_mrope true is not supported; supported: false")
    fields = common_fields(hf, default_kv_heads=32)
    return {**fields, **sliding_layers(hf, fields["num_layers"]), "attention_bias": True}


QWEN2 = Family("Qwen2ForCausalLM", "qwen2", qwen2_fields, HF_DECODER)
