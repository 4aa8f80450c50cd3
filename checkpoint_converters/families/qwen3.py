"""Qwen3: norms on each query and key head, head_dim of its own, no biases by default."""

from __future__ import annotations

from typing import Any

from checkpoint_converters.families.family import Family, sliding_layers
from checkpoint_converters.hf_config import HfConfig, common_fields
from checkpoint_converters.hf_decoder import HF_DECODER


def _fields(hf: HfConfig) -> dict[str, Any]:
    fields = common_fields(hf, default_kv_heads=32)
    bias = hf.get("attention_bias", False)
    return {
        **fields,
        **sliding_layers(hf, fields["num_layers"]),
        # transformers' default is a constant here, not hidden_size / num_attention_heads.
        "head_dim": hf.get("head_dim", 128),
        "qk_norm": True,
        "attention_bias": bias,
        "attention_output_bias": bias,
    }


QWEN3 = Family("Qwen3ForCausalLM", "qwen3", _fields, HF_DECODER)
