"""A tiny random model of every family, made by transformers: add a family here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import transformers as hf
from transformers import PreTrainedModel

VOCAB = 203

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 88,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "attn_implementation": "eager",
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.3, 1.7, 2.0, 2.5, 3.0],
    "long_factor": [1.0, 2.0, 4.0, 6.0, 9.0, 14.0],
}
_MIXED = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
_HYBRID = ["linear_attention", "full_attention", "linear_attention", "full_attention"]
_GEMMA4: dict[str, Any] = {
    "num_hidden_layers": 6,
    "head_dim": 24,
    "global_head_dim": 32,
    "sliding_window": 9,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
}


@dataclass(frozen=True)
class Made:
    """transformers' config and model of a case, and what the config says beside `SIZES`."""

    config: Any
    model: Any
    says: dict[str, Any] = field(default_factory=dict)


def _phi3(original: int) -> Made:
    """Longrope in its short or its long form: all prompts are longer than 8 tokens."""
    # transformers takes the length from beside the rope, where its default would be 4096.
    long = {"original_max_position_embeddings": original}
    says = {"rope_parameters": {**_LONG, **long}, **long, "sliding_window": 20}
    return Made(hf.Phi3Config, hf.Phi3ForCausalLM, says)


_GRANITE = {
    "embedding_multiplier": 3.0,
    "logits_scaling": 1.7,
    "residual_multiplier": 0.6,
    "attention_multiplier": 0.17,
}
_MAMBA = {
    **_GRANITE,
    "shared_intermediate_size": 72,
    "mamba_n_heads": 6,
    "mamba_d_head": 32,
    "mamba_d_state": 12,
    "mamba_expand": 3,
}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 40}
_DELTA = {
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 20,
}
_SHARED = {**_EXPERTS, "num_experts": 6, "shared_expert_intermediate_size": 48}
_LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 20,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "mscale": 0.7,
        "mscale_all_dim": 1.2,
    },
}


FAMILIES: dict[str, Made] = {
    "smollm3": Made(
        hf.SmolLM3Config,
        hf.SmolLM3ForCausalLM,
        {"no_rope_layer_interval": 2, "use_sliding_window": True, "sliding_window": 9},
    ),
    "olmo2": Made(hf.Olmo2Config, hf.Olmo2ForCausalLM),
    "olmo3": Made(
        hf.Olmo3Config, hf.Olmo3ForCausalLM, {"layer_types": _MIXED, "sliding_window": 7}
    ),
    "granite": Made(hf.GraniteConfig, hf.GraniteForCausalLM, _GRANITE),
    "phi3": _phi3(128),
    "phi3_long": _phi3(8),
    "glm": Made(hf.GlmConfig, hf.GlmForCausalLM, {"head_dim": 16}),
    "glm4": Made(hf.Glm4Config, hf.Glm4ForCausalLM, {"head_dim": 16}),
    "gemma": Made(hf.GemmaConfig, hf.GemmaForCausalLM, {"head_dim": 24}),
    "gemma2": Made(
        hf.Gemma2Config,
        hf.Gemma2ForCausalLM,
        {
            "head_dim": 24,
            "sliding_window": 9,
            "query_pre_attn_scalar": 30,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 5.0,
        },
    ),
    "gemma3": Made(
        hf.Gemma3TextConfig,
        hf.Gemma3ForCausalLM,
        {
            "head_dim": 24,
            "sliding_window": 9,
            "query_pre_attn_scalar": 30,
            "layer_types": _MIXED,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "gemma4": Made(
        hf.Gemma4TextConfig,
        hf.Gemma4ForCausalLM,
        {
            **_GEMMA4,
            "num_kv_shared_layers": 3,
            "use_double_wide_mlp": True,
            "hidden_size_per_layer_input": 12,
            "vocab_size_per_layer_input": VOCAB,
        },
    ),
    "gemma4_keys": Made(
        hf.Gemma4TextConfig,
        hf.Gemma4ForCausalLM,
        {
            **_GEMMA4,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "hidden_size_per_layer_input": 0,
            "final_logit_softcapping": 5.0,
        },
    ),
    "cohere": Made(hf.CohereConfig, hf.CohereForCausalLM, {"logit_scale": 0.3}),
    "cohere_plus": Made(hf.CohereConfig, hf.CohereForCausalLM, {"use_qk_norm": True}),
    "cohere2": Made(
        hf.Cohere2Config,
        hf.Cohere2ForCausalLM,
        {"layer_types": _MIXED, "sliding_window": 9, "logit_scale": 0.3},
    ),
    "deepseek_v2": Made(
        hf.DeepseekV2Config,
        hf.DeepseekV2ForCausalLM,
        {
            **_LATENT,
            **_EXPERTS,
            "q_lora_rank": None,
            "first_k_dense_replace": 2,
            "topk_method": "group_limited_greedy",
            "n_routed_experts": 12,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.5,
        },
    ),
    "deepseek_v3": Made(
        hf.DeepseekV3Config,
        hf.DeepseekV3ForCausalLM,
        {
            **_LATENT,
            **_EXPERTS,
            "q_lora_rank": 28,
            "first_k_dense_replace": 2,
            "n_routed_experts": 12,
            "n_group": 4,
            "topk_group": 2,
        },
    ),
    "starcoder2": Made(hf.Starcoder2Config, hf.Starcoder2ForCausalLM, {"sliding_window": 11}),
    "mixtral": Made(
        hf.MixtralConfig, hf.MixtralForCausalLM, {"num_local_experts": 5, "sliding_window": 9}
    ),
    "qwen2_moe": Made(
        hf.Qwen2MoeConfig,
        hf.Qwen2MoeForCausalLM,
        {
            **_EXPERTS,
            "num_experts": 6,
            "shared_expert_intermediate_size": 48,
            "mlp_only_layers": [0],
        },
    ),
    "qwen3_moe": Made(
        hf.Qwen3MoeConfig,
        hf.Qwen3MoeForCausalLM,
        {**_EXPERTS, "num_experts": 9, "norm_topk_prob": True, "decoder_sparse_step": 2},
    ),
    "qwen3_next": Made(
        hf.Qwen3NextConfig,
        hf.Qwen3NextForCausalLM,
        {**_DELTA, **_SHARED, "mlp_only_layers": [1], "attention_bias": True},
    ),
    "qwen3_5": Made(
        hf.Qwen3_5TextConfig,
        hf.Qwen3_5ForCausalLM,
        {**_DELTA, "linear_conv_kernel_dim": 3, "layer_types": _HYBRID},
    ),
    "qwen3_5_moe": Made(hf.Qwen3_5MoeTextConfig, hf.Qwen3_5MoeForCausalLM, {**_DELTA, **_SHARED}),
    "glm4_moe": Made(
        hf.Glm4MoeConfig,
        hf.Glm4MoeForCausalLM,
        {
            **_EXPERTS,
            "n_routed_experts": 12,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.5,
            "use_qk_norm": True,
            "attention_bias": True,
        },
    ),
    "gpt_oss": Made(
        hf.GptOssConfig,
        hf.GptOssForCausalLM,
        {"head_dim": 16, "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 9},
    ),
    "granite_moe": Made(
        hf.GraniteMoeConfig,
        hf.GraniteMoeForCausalLM,
        {"num_local_experts": 5, **_GRANITE},
    ),
    "granite_hybrid": Made(
        hf.GraniteMoeHybridConfig,
        hf.GraniteMoeHybridForCausalLM,
        {
            **_MAMBA,
            "num_local_experts": 0,
            "mamba_n_groups": 2,
            "mamba_proj_bias": True,
            "layer_types": ["mamba", "attention", "mamba", "mamba"],
        },
    ),
    "granite_hybrid_moe": Made(
        hf.GraniteMoeHybridConfig,
        hf.GraniteMoeHybridForCausalLM,
        {
            **_MAMBA,
            "num_local_experts": 5,
            "mamba_d_conv": 3,
            "mamba_conv_bias": False,
            "position_embedding_type": "rope",
            "layer_types": ["mamba", "mamba", "attention", "mamba"],
        },
    ),
    "granite_attention": Made(
        hf.GraniteMoeHybridConfig,
        hf.GraniteMoeHybridForCausalLM,
        {
            **_GRANITE,
            "num_local_experts": 0,
            "shared_intermediate_size": 72,
            "layer_types": ["attention"] * 4,
        },
    ),
}


def family_model(case: str, **changes: Any) -> PreTrainedModel:
    """The float32 model of a case, every part of which shows in its logits; ``changes`` of what its
    config says."""
    torch.manual_seed(sum(map(ord, case)))
    made = FAMILIES[case]
    model: PreTrainedModel = made.model(made.config(**{**SIZES, **made.says, **changes})).eval()
    # No text ends early.
    model.config.eos_token_id = model.generation_config.eos_token_id = None
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight"):
                weight.uniform_(0.5, 1.5)
            elif name.endswith("A_log"):  # of states that forget soon, and of such as do not
                weight.uniform_(-4, 1)
            elif name.endswith("conv1d.weight"):
                weight.normal_(std=0.5)
            elif "gemma" in case and weight.dim() == 1:
                weight.uniform_(-0.5, 0.5)
            else:
                weight.normal_(std=0.3 if weight.dim() == 1 else 0.125)
        for name, buffer in model.named_buffers():
            if name.endswith("correction_bias"):
                buffer.uniform_(-0.3, 0.3)
            elif name.endswith("layer_scalar"):
                buffer.uniform_(0.7, 1.2)
    return model
