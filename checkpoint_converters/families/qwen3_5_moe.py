"""Qwen3.5 (text) with experts in every layer."""

from __future__ import annotations

from typing import Any

from checkpoint_converters.families.composite import Composite, with_plain_ropes
from checkpoint_converters.families.family import Family
from checkpoint_converters.families.qwen2_moe import QWEN_MIXTURE
from checkpoint_converters.families.qwen3_next import gguf_experts, qwen_experts
from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.hf_decoder import model_fields
from checkpoint_converters.hf_delta import hf_hybrid, read_hybrid
from checkpoint_converters.hf_experts import STACKED, with_experts


def _fields(hf: HfConfig) -> dict[str, Any]:
    # Its configs do not say the width of dense parts, of which there are none.
    whole = hf.replacing({"intermediate_size": hf.get("moe_intermediate_size")})
    layers, rope = read_hybrid(with_plain_ropes(whole), default_kv_heads=2)
    experts = qwen_experts(hf, normalised=True)
    return model_fields(hf, with_experts(layers, experts, [True] * len(layers)), ropes=(rope,))


QWEN3_5_MOE = Family(
    "Qwen3_5MoeForCausalLM",
    "qwen3_5_moe_text",
    _fields,
    hf_hybrid(QWEN_MIXTURE),
    stacked=STACKED,
    gguf=gguf_experts("qwen35moe"),
    composites=(Composite("Qwen3_5MoeForConditionalGeneration"),),
)
