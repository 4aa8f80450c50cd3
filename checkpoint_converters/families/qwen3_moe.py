"""Qwen3-MoE: Qwen3 with many small experts."""

from __future__ import annotations

from typing import Any

from checkpoint_converters.families.family import Family
from checkpoint_converters.families.qwen2_moe import sparse_layers
from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.hf_decoder import model_fields, read_layer, read_window, repeat_layer
from checkpoint_converters.hf_experts import STACKED, hf_mixture, read_experts, with_experts


def _fields(hf: HfConfig) -> dict[str, Any]:
    bias = hf.get("attention_bias", False)
    given = hf.get("sliding_window", 4096) if hf.get("use_sliding_window", False) else None
    layer = read_layer(hf, default_kv_heads=4)
    layer = layer.with_mixer(
        qk_norm=layer.norm, bias=bias, output_bias=bias, window=read_window(hf, given)
    )
    layers = repeat_layer(hf, layer)
    experts = read_experts(
        hf, "num_experts", "moe_intermediate_size", normalised=hf.get("norm_topk_prob", False)
    )
    return model_fields(hf, with_experts(layers, experts, sparse_layers(hf, len(layers))))


QWEN3_MOE = Family("Qwen3MoeForCausalLM", "qwen3_moe", _fields, hf_mixture(), stacked=STACKED)
