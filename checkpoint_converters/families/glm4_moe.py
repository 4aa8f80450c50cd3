"""GLM-4.5: sigmoid routers with groups and a selection bias, a shared expert."""

from __future__ import annotations

from typing import Any

from checkpoint_converters.families.family import Family
from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.hf_decoder import (
    attention_of,
    model_fields,
    read_layer,
    read_norm,
    repeat_layer,
)
from checkpoint_converters.hf_experts import STACKED, hf_mixture, read_experts, with_experts
from checkpoint_converters.rope import read_rope, read_rotary_dim

_NAMES = hf_mixture("shared_experts").renamed(
    {"layers.{i}.mlp.router.choice_bias": "model.layers.{i}.mlp.gate.e_score_correction_bias"}
)


def _fields(hf: HfConfig) -> dict[str, Any]:
    layer = read_layer(hf, default_kv_heads=8, norm=read_norm(hf, 1e-5))
    layer = layer.with_mixer(
        bias=hf.get("attention_bias", False),
        qk_norm=layer.norm if hf.get("use_qk_norm", False) else None,
        rotary_dim=read_rotary_dim(hf.values, attention_of(layer).head_dim, 0.5, hf.refuse),
    )
    inner = hf.require("moe_intermediate_size")
    experts = read_experts(
        hf,
        "n_routed_experts",
        "moe_intermediate_size",
        router="sigmoid",
        choice_bias=True,
        normalised=hf.get("norm_topk_prob", True),
        weight_scale=float(hf.get("routed_scaling_factor", 1.0)),
        num_groups=hf.get("n_group", 1),
        top_groups=hf.get("topk_group", 1),
        shared_size=inner * hf.get("n_shared_experts", 1),
    )
    layers = repeat_layer(hf, layer)
    dense = hf.get("first_k_dense_replace", 1)
    marks = [index >= dense for index in range(len(layers))]
    rope = read_rope(hf.values, hf.refuse, partial=True)
    return model_fields(hf, with_experts(layers, experts, marks), ropes=(rope,))


GLM4_MOE = Family("Glm4MoeForCausalLM", "glm4_moe", _fields, _NAMES, stacked=STACKED)
