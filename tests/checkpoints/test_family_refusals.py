"""What a family's config.json may not say is refused by key and value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from checkpoint_converters import load_checkpoint, read_config
from trtspec.errors import CheckpointError

from ..e2e.families import FAMILIES, SIZES, family_model

BASE: dict[str, Any] = {
    "vocab_size": 20,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "dtype": "float32",
}
LONG = {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0, 2.0]}

MORE: dict[str, dict[str, Any]] = {
    "Gemma4": {"vocab_size_per_layer_input": 20},
    "GraniteMoeHybrid": {"mamba_n_heads": 32},
    "Qwen2Moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 8,
        "shared_expert_intermediate_size": 8,
    },
}

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("Llama", {"ssm_state_size": 16}, "ssm_state_size is 16: its layers have Mamba-2"),
    ("Gemma3", {"text_config": {"lru_width": 8}}, "lru_width is 8: .* gated linear recurrence"),
    ("SmolLM3", {"no_rope_layers": [1, 2, 1, 1]}, r"no_rope_layers is \[1, 2"),
    ("SmolLM3", {"no_rope_layers": [1, 0]}, "0 or 1 for each of 4 layers"),
    ("SmolLM3", {"no_rope_layer_interval": 0}, "no_rope_layer_interval is 0"),
    ("Olmo3", {"layer_types": ["chunked_attention"] * 4}, "layer_types chunked_attention"),
    ("Olmo3", {"layer_types": ["full_attention"]}, "layer_types names 1 layers, the model has 4"),
    ("Granite", {"residual_multiplier": 0}, "residual_multiplier is 0; it must be above 0"),
    ("GraniteMoeHybrid", {"layer_types": ["mamba2"] * 4}, "layer_types mamba2 are not supported"),
    ("GraniteMoeHybrid", {"layer_types": ["mamba"]}, "layer_types names 1 layers, the model has 4"),
    ("GraniteMoeHybrid", {"mamba_d_head": 3}, r"32 of mamba_d_head 3 .* hidden_size = 32"),
    ("GraniteMoeHybrid", {"mamba_n_groups": 3}, "num_heads 32 is not a multiple of num_groups 3"),
    ("GraniteMoeHybrid", {"hidden_act": "relu"}, "hidden_act of Mamba-2 is 'relu'; supported: si"),
    ("GraniteMoeHybrid", {"time_step_limit": [2, 1]}, "most_step 1.0 of time steps is below least"),
    ("GraniteMoeHybrid", {"position_embedding_type": "alibi"}, "position_embedding_type 'alibi'"),
    ("Phi3", {"partial_rotary_factor": 1.5}, "partial_rotary_factor is 1.5"),
    ("Phi3", {"rope_scaling": LONG}, "1 numbers in short_factor and 2 in long_factor"),
    ("Phi3", {"rope_scaling": {**LONG, "long_factor": 3}}, "long_factor is 3, not a list"),
    ("Glm", {"hidden_act": "tanh"}, "hidden_act 'tanh' is not supported"),
    ("Gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention true"),
    ("Gemma2", {"hidden_activation": "gelu_fast"}, "hidden_activation 'gelu_fast'"),
    ("Gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0"),
    ("Gemma2", {"attn_logit_softcapping": -1.0}, "soft_cap is -1.0; it must be above 0"),
    ("Gemma3", {"rope_parameters": {"full_attention": {"rope_type": "ntk"}}}, "rope type 'ntk'"),
    (
        "Gemma3",
        {"rope_parameters": {"sliding_attention": {}, "chunked_attention": {}}},
        "rope_parameters has unknown keys chunked_attention",
    ),
    ("Gemma4", {"use_bidirectional_attention": "al"}, "use_bidirectional_attention 'al'"),
    ("Gemma4", {"enable_moe_block": True}, "enable_moe_block 'true'"),
    ("Gemma4", {"per_layer_config": {"0": {"head_dim": 8}}}, r"without a window \(3\)"),
    ("Gemma4", {"per_layer_config": {"3": {"heads": 8}}}, "layer 3 has unknown keys heads"),
    ("Cohere2", {"sliding_window": 0}, "sliding_window is 0; it must be at least 1"),
    ("Cohere2", {"logit_scale": -2.0}, "scale of the logits is -2.0"),
    (
        "Qwen2Moe",
        {"layer_types": ["sliding_attention"] * 4},
        "marks layers, but use_sliding_window is not true",
    ),
    ("Qwen3", {"layer_types": ["chunked_attention"] * 4}, "layer_types chunked_attention"),
    ("Qwen2", {"layer_types": ["linear_attention"] * 4}, "layer_types linear_attention"),
    ("Qwen3", {"layer_types": 7}, "layer_types 7 are not supported"),
    ("Mistral", {"layer_types": [None] * 4}, "layer_types None are not supported"),
    ("Mistral", {"layer_types": ["full_attention"] * 4}, "layer_types full_attention with sliding"),
    ("Llama", {"hidden_act": "mish"}, "hidden_act 'mish' is not supported"),
    ("Llama", {"rope_scaling": {"type": "su", "factor": 2.0}}, "rope type 'su' is not supported"),
    ("Llama", {"head_dim": 0}, "head_dim is 0; it must be at least 1"),
    ("Starcoder2", {"norm_epsilon": -1.0}, "eps of a norm is -1.0"),
]


@pytest.mark.parametrize(("family", "changes", "message"), REFUSED)
def test_refused_by_key_and_value(
    family: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    config = {"architectures": [f"{family}ForCausalLM"], **BASE, **MORE.get(family, {})}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    read_config(tmp_path)
    file.write_text(json.dumps(config | changes))
    with pytest.raises(CheckpointError, match=message):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("architecture", "says", "message"),
    [
        ("DeepseekV32", {"index_topk": 2048}, "index_topk is 2048: .* sparse-attention indexer"),
        ("NemotronH", {"ssm_state_size": 128}, "ssm_state_size is 128: .* Mamba-2"),
    ],
)
def test_unknown_architectures_are_told_by_their_mixer(
    architecture: str, says: dict[str, Any], message: str, tmp_path: Path
) -> None:
    config = {"architectures": [f"{architecture}ForCausalLM"], **BASE, **says}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=message):
        read_config(tmp_path)


@pytest.mark.parametrize("case", FAMILIES)
def test_what_no_family_may_say(case: str, tmp_path: Path) -> None:
    """An activation, a kind of rope, a size of heads and kinds of layers that are not known."""
    made = FAMILIES[case]
    config = made.config(**{**SIZES, **made.says}).to_dict()
    config |= {"architectures": [made.model.__name__], "dtype": "float32"}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    assert read_config(tmp_path).architecture == made.model.__name__
    activation = "hidden_activation" if "hidden_activation" in config else "hidden_act"
    rope = {"rope_type": "ntk", "rope_theta": 1e4, "factor": 2.0}
    bad: list[tuple[dict[str, Any], str]] = [
        ({activation: "mish"}, f"{activation} 'mish' is not supported; supported: silu"),
        ({"rope_parameters": rope}, "rope type 'ntk' is not supported; supported: default"),
        ({"intermediate_size": 0}, "intermediate_size is 0; it must be at least 1"),
    ]
    if "kv_lora_rank" not in config:  # latents have sizes of their own
        bad += [
            ({"head_dim": 0}, "head_dim is 0; it must be at least 1"),
            ({"num_key_value_heads": 3}, "num_heads 4 is not a multiple of num_kv_heads 3"),
        ]
    if config.get("layer_types"):
        kinds = [*config["layer_types"][:3], "chunked_attention"]
        bad.append(({"layer_types": kinds}, "layer_types chunked_attention are not supported"))
    for changes, message in bad:
        file.write_text(json.dumps(config | changes))
        with pytest.raises(CheckpointError, match=message):
            read_config(tmp_path)


def test_tensors_that_do_not_fit(tmp_path: Path) -> None:
    """A fused tensor of other heads, and one that nobody reads."""
    family_model("phi3").save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    fused = "model.layers.1.self_attn.qkv_proj.weight"
    save_file({**tensors, "model.layers.1.surplus": torch.zeros(3)}, file)
    with pytest.raises(CheckpointError, match=r"have no use: model\.layers\.1\.surplus"):
        load_checkpoint(tmp_path)
    save_file({**tensors, fused: tensors[fused][:-16].clone()}, file)
    with pytest.raises(CheckpointError, match=r"qkv_proj\.weight has shape .* 64 \+ 32 \+ 32 rows"):
        load_checkpoint(tmp_path)
