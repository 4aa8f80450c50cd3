"""Llama 2 and 3.x."""

from __future__ import annotations

from typing import Any

from checkpoint_converters.families.family import Family
from checkpoint_converters.hf_config import HfConfig, common_fields
from checkpoint_converters.hf_decoder import HF_DECODER


def _fields(hf: HfConfig) -> dict[str, Any]:
    bias = hf.get("attention_bias", False)
    return {
        **common_fields(hf, default_kv_heads=None),
        "attention_bias": bias,
        "attention_output_bias": bias,
        "mlp_bias": hf.get("mlp_bias", False),
    }


LLAMA = Family("LlamaForCausalLM", "llama", _fields, HF_DECODER)
