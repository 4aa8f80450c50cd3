"""Qwen3-Next: the gated delta rule, gated attention in every fourth layer, and experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from checkpoint_converters.families.family import Family, GgufNames
from checkpoint_converters.families.qwen2_moe import QWEN_MIXTURE, sparse_layers
from checkpoint_converters.gguf_decoder import GGUF_DECODER
from checkpoint_converters.gguf_delta import DELTA_NAMES, EXPERT_DELTA_KEYS, MIXED_GATES
from checkpoint_converters.gguf_experts import EXPERT_CHANGES, EXPERT_NAMES, STACKED_EXPERTS
from checkpoint_converters.gguf_mamba import MAMBA_CHANGES
from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.hf_decoder import model_fields
from checkpoint_converters.hf_delta import BY_KEY_HEAD, hf_hybrid, read_hybrid
from checkpoint_converters.hf_experts import STACKED, read_experts, with_experts
from trtspec.config.feed_forwards.experts import ExpertsSpec


def qwen_experts(hf: HfConfig, normalised: bool) -> ExpertsSpec:
    """The mixture of these hybrids, with a gated shared expert."""
    return read_experts(
        hf,
        "num_experts",
        "moe_intermediate_size",
        normalised=normalised,
        shared_size=hf.require("shared_expert_intermediate_size"),
        shared_gate=True,
    )


def _fields(hf: HfConfig) -> dict[str, Any]:
    layers, rope = read_hybrid(hf, default_kv_heads=2, tiles=False)
    experts = qwen_experts(hf, hf.get("norm_topk_prob", True))
    layers = with_experts(layers, experts, sparse_layers(hf, len(layers)))
    return model_fields(hf, layers, ropes=(rope,))


def gguf_experts(architecture: str) -> GgufNames:
    """These hybrids in GGUF files, under this architecture name."""
    return GgufNames(
        architecture,
        GGUF_DECODER.renamed({**DELTA_NAMES, **EXPERT_NAMES}),
        keys=EXPERT_DELTA_KEYS,
        stacked=STACKED_EXPERTS,
        norms_plus_one=True,
        changes={**MAMBA_CHANGES, **EXPERT_CHANGES},
    )


QWEN3_NEXT = Family(
    "Qwen3NextForCausalLM",
    "qwen3_next",
    _fields,
    hf_hybrid(QWEN_MIXTURE),
    mixed=BY_KEY_HEAD,
    stacked=STACKED,
    gguf=replace(gguf_experts("qwen3next"), mixed=MIXED_GATES),
)
