"""DeepSeek V3 and R1: latent attention; dense first layers, experts in the others."""

from __future__ import annotations

from typing import Any

from checkpoint_converters.families.family import Family
from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.hf_decoder import model_fields
from checkpoint_converters.hf_experts import STACKED, hf_mixture, read_experts
from checkpoint_converters.hf_latent import latent_layers, read_latent_attention
from checkpoint_converters.rope import read_rope
from trtspec.config.feed_forwards.experts import ExpertsSpec

_NAMES = hf_mixture("shared_experts").renamed(
    {"layers.{i}.mlp.router.choice_bias": "model.layers.{i}.mlp.gate.e_score_correction_bias"}
)


def _experts(hf: HfConfig) -> ExpertsSpec:
    return read_experts(
        hf,
        "n_routed_experts",
        "moe_intermediate_size",
        router="sigmoid",
        choice_bias=True,
        normalised=hf.get("norm_topk_prob", True),
        weight_scale=float(hf.get("routed_scaling_factor", 2.5)),
        num_groups=hf.get("n_group", 8),
        top_groups=hf.get("topk_group", 4),
        shared_size=hf.require("moe_intermediate_size") * hf.get("n_shared_experts", 1),
    )


def _fields(hf: HfConfig) -> dict[str, Any]:
    rope = read_rope(hf.values, hf.refuse)
    mixer = read_latent_attention(hf, rope, hf.get("rope_interleave", True))
    layers = latent_layers(hf, mixer, hf.get("first_k_dense_replace", 3), _experts)
    return model_fields(hf, layers, ropes=(rope,))


DEEPSEEK_V3 = Family(
    "DeepseekV3ForCausalLM",
    "deepseek_v3",
    _fields,
    _NAMES,
    stacked=STACKED,
    defaults={"bos_token_id": 0, "eos_token_id": 1},
)
