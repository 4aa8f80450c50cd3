"""DeepSeek V2 and V2-Lite: V3's layers with another router."""

from __future__ import annotations

from typing import Any

from checkpoint_converters.families.family import Family
from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.hf_decoder import model_fields
from checkpoint_converters.hf_experts import STACKED, hf_mixture, read_experts
from checkpoint_converters.hf_latent import latent_layers, read_latent_attention
from checkpoint_converters.rope import read_rope
from trtspec.config.feed_forwards.experts import ExpertsSpec


def _experts(hf: HfConfig) -> ExpertsSpec:
    method = hf.get("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise hf.refuse(
            f"topk_method {method!r} is not supported; supported: greedy, group_limited_greedy"
        )
    grouped = method == "group_limited_greedy"
    return read_experts(
        hf,
        "n_routed_experts",
        "moe_intermediate_size",
        normalised=False,  # transformers does not read norm_topk_prob here
        weight_scale=float(hf.get("routed_scaling_factor", 1.0)),
        num_groups=hf.require("n_group") if grouped else 1,
        top_groups=hf.require("topk_group") if grouped else 1,
        shared_size=hf.require("moe_intermediate_size") * hf.get("n_shared_experts", 2),
    )


def _fields(hf: HfConfig) -> dict[str, Any]:
    rope = read_rope(hf.values, hf.refuse)
    mixer = read_latent_attention(hf, rope)
    layers = latent_layers(hf, mixer, hf.get("first_k_dense_replace", 0), _experts)
    return model_fields(hf, layers, ropes=(rope,))


DEEPSEEK_V2 = Family(
    "DeepseekV2ForCausalLM",
    "deepseek_v2",
    _fields,
    hf_mixture("shared_experts"),
    stacked=STACKED,
    defaults={"bos_token_id": 1, "eos_token_id": 2},
)
