"""The tiny models of families as GGUF files, converted as llama.cpp's own script does it."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

gguf = pytest.importorskip("gguf", reason="GGUF files are written with the package gguf")

Say = Callable[[Any, Any], None]


@dataclass(frozen=True)
class Conversion:
    """``architecture``: of `gguf.MODEL_ARCH`. ``changes`` of the case's config: what a file cannot
    say, and llama.cpp has a rule for. ``says``: what is written beside what all files say, of a
    writer and a config. ``pairs``: q and k are written with what turns together side by side.
    ``plus_one``: the weights of norms are written as 1 + w."""

    architecture: str
    says: Say | None = None
    changes: dict[str, Any] = field(default_factory=dict)
    pairs: bool = False
    plus_one: bool = False


def _caps(writer: Any, config: Any) -> None:
    writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_sliding_window(config.sliding_window)


def _window(writer: Any, config: Any) -> None:
    writer.add_sliding_window(config.sliding_window)
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(config.rope_parameters["full_attention"]["factor"])
    writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])


def _pattern(writer: Any, config: Any) -> None:
    writer.add_sliding_window(config.sliding_window)
    kinds = config.layer_types
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in kinds])


def _scales(writer: Any, config: Any) -> None:
    writer.add_attention_scale(config.attention_multiplier)
    writer.add_embedding_scale(config.embedding_multiplier)
    writer.add_residual_scale(config.residual_multiplier)
    writer.add_logit_scale(config.logits_scaling)


def _experts(writer: Any, config: Any) -> None:
    writer.add_expert_count(getattr(config, "num_local_experts", None) or config.num_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)


def _hybrid(writer: Any, config: Any) -> None:
    """The MLP of dense layers is the shared one."""
    _scales(writer, config)
    marks = [kind == "full_attention" for kind in config.layer_types]
    writer.add_head_count_kv([config.num_key_value_heads * mark for mark in marks])
    writer.add_expert_shared_feed_forward_length(config.shared_intermediate_size)
    writer.add_rope_scaling_finetuned(config.position_embedding_type == "rope")
    if config.num_local_experts:
        _experts(writer, config)
    else:
        writer.add_feed_forward_length(config.shared_intermediate_size)
        writer.add_expert_count(0)
    writer.add_ssm_conv_kernel(config.mamba_d_conv)
    writer.add_ssm_inner_size(config.mamba_n_heads * config.mamba_d_head)
    writer.add_ssm_state_size(config.mamba_d_state)
    writer.add_ssm_time_step_rank(config.mamba_n_heads)
    writer.add_ssm_group_count(config.mamba_n_groups)


def _delta(writer: Any, config: Any) -> None:
    writer.add_full_attention_interval(4)
    writer.add_rope_dimension_sections([1, 1, 0, 0])
    writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
    writer.add_ssm_inner_size(config.linear_num_value_heads * config.linear_value_head_dim)
    writer.add_ssm_state_size(config.linear_key_head_dim)
    writer.add_ssm_time_step_rank(config.linear_num_value_heads)
    writer.add_ssm_group_count(config.linear_num_key_heads)


def _sparse_delta(writer: Any, config: Any) -> None:
    _delta(writer, config)
    _experts(writer, config)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)


def _logit_scale(writer: Any, config: Any) -> None:
    writer.add_logit_scale(config.logit_scale)
    writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)


def _scaled_window(writer: Any, config: Any) -> None:
    _logit_scale(writer, config)
    writer.add_sliding_window(config.sliding_window)


def _longrope(writer: Any, config: Any) -> None:
    rope = config.rope_parameters
    original = rope["original_max_position_embeddings"]
    stretch = config.max_position_embeddings / original
    factor = 1.0 if stretch <= 1 else (1 + np.log(stretch) / np.log(original)) ** 0.5
    writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
    writer.add_rope_scaling_orig_ctx_len(original)
    writer.add_rope_scaling_attn_factors(float(factor))
    writer.add_sliding_window(config.sliding_window)
    for name, kind in (("short", "SHORT"), ("long", "LONG")):
        tensor = getattr(gguf.MODEL_TENSOR, f"ROPE_FACTORS_{kind}")
        factors = np.array(rope[f"{name}_factor"], np.float32)
        writer.add_tensor(f"{gguf.TENSOR_NAMES[tensor]}.weight", factors)


def _gemma4(writer: Any, config: Any) -> None:
    """Heads, wide MLPs and ropes of both kinds of layers."""
    _pattern(writer, config)
    layers, shared = config.num_hidden_layers, config.num_kv_shared_layers
    writer.add_shared_kv_layers(shared)
    writer.add_embedding_length_per_layer_input(config.hidden_size_per_layer_input)
    if config.final_logit_softcapping:
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if config.use_double_wide_mlp:
        inner = config.intermediate_size
        wide = [inner * (1 + (i >= layers - shared)) for i in range(layers)]
        writer.add_feed_forward_length(wide)
    own, rope = config.per_layer_config[1], config.rope_parameters
    if config.attention_k_eq_v:
        both = own.num_key_value_heads, config.num_key_value_heads
        slides = [kind == "sliding_attention" for kind in config.layer_types]
        writer.add_head_count_kv([both[mark] for mark in slides])
    whole = own.head_dim
    writer.add_key_length(whole)
    writer.add_value_length(whole)
    writer.add_key_length_swa(config.head_dim)
    writer.add_value_length_swa(config.head_dim)
    writer.add_rope_dimension_count(whole)
    writer.add_rope_dimension_count_swa(config.head_dim)
    writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
    turning = int(whole * rope["full_attention"]["partial_rotary_factor"] / 2)
    factors = np.array([1.0] * turning + [1e30] * (whole // 2 - turning), np.float32)
    writer.add_tensor("rope_freqs.weight", factors)


_SCALAR = {"query_pre_attn_scalar": 24}
_SLIDING, _FULL = ["sliding_attention"], ["full_attention"]
_EVERY_SIXTH = {
    "num_hidden_layers": 6,
    "layer_types": _SLIDING * 5 + _FULL,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
    },
}
_EVERY_FOURTH = {"layer_types": _SLIDING * 3 + _FULL}

CONVERSIONS: dict[str, Conversion] = {
    "smollm3": Conversion(
        "SMOLLM3", None, {"no_rope_layer_interval": 4, "use_sliding_window": False}, pairs=True
    ),
    "olmo2": Conversion("OLMO2"),
    "olmo3": Conversion("OLMO2", _pattern),
    "granite": Conversion("GRANITE", _scales, pairs=True),
    "granite_hybrid": Conversion("GRANITE_HYBRID", _hybrid, pairs=True),
    "phi3": Conversion("PHI3", _longrope),
    "phi3_long": Conversion("PHI3", _longrope),
    "glm": Conversion("CHATGLM"),
    "glm4": Conversion("GLM4"),
    "gemma": Conversion("GEMMA", plus_one=True),
    "gemma2": Conversion("GEMMA2", _caps, _SCALAR, plus_one=True),
    "gemma3": Conversion("GEMMA3", _window, {**_SCALAR, **_EVERY_SIXTH}, plus_one=True),
    "gemma4": Conversion("GEMMA4", _gemma4),
    "gemma4_keys": Conversion("GEMMA4", _gemma4),
    "cohere": Conversion("COMMAND_R", _logit_scale),
    "cohere_plus": Conversion("COMMAND_R", _logit_scale),
    "cohere2": Conversion("COHERE2", _scaled_window, _EVERY_FOURTH),
    "qwen3_5": Conversion(
        "QWEN35", _delta, {"layer_types": ["linear_attention"] * 3 + _FULL}, plus_one=True
    ),
    "qwen3_5_moe": Conversion("QWEN35MOE", _sparse_delta, plus_one=True),
    "qwen3_next": Conversion(
        "QWEN3NEXT", _sparse_delta, {"mlp_only_layers": [], "attention_bias": False}, plus_one=True
    ),
    "granite_hybrid_moe": Conversion("GRANITE_HYBRID", _hybrid, pairs=True),
    "starcoder2": Conversion("STARCODER2", None, {"sliding_window": None}),
}


def write_family(
    case: str,
    model: PreTrainedModel,
    file: Path,
    kind: str = "F32",
    more: Mapping[str, int | bool | list[int]] = MappingProxyType({}),
) -> Path:
    """The file of a model; ``kind``: of its matrices, whose values the model gets. ``more``: what
    it says in the end, by key behind the architecture."""
    conversion, config = CONVERSIONS[case], copy.deepcopy(model.config)
    config.allow_global_per_layer_attribute_access = True  # where they differ, `says` has them
    arch = getattr(gguf.MODEL_ARCH, conversion.architecture)
    writer = gguf.GGUFWriter(file, gguf.MODEL_ARCH_NAMES[arch])
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(rope["rope_theta"])
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(int(head_dim * (rope.get("partial_rotary_factor") or 1.0)))
    if hasattr(config, "rms_norm_eps"):
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    else:
        writer.add_layer_norm_eps(getattr(config, "layer_norm_eps", None) or config.norm_epsilon)
    if conversion.says is not None:
        conversion.says(writer, config)
    for key, value in more.items():
        add = {bool: writer.add_bool, int: writer.add_uint32, list: writer.add_array}[type(value)]
        add(f"{writer.arch}.{key}", value)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    scales = {n: value for n, value in model.named_buffers() if n.endswith("layer_scalar")}
    for name, parameter in _parts({**dict(model.named_parameters()), **scales}, config):
        suffix = ".weight" if name in scales else ""
        theirs = names.get_name(name + suffix, try_suffixes=(".weight", ".bias"))
        assert theirs, name
        is_matrix = parameter.dim() > 1 and not name.endswith(_FLOATS)
        ggml = gguf.GGMLQuantizationType[kind if is_matrix else "F32"]
        raw = gguf.quantize(_converted(conversion, name, parameter.detach(), config), ggml)
        if is_matrix and kind != "F32":
            rounded = torch.from_numpy(gguf.dequantize(raw, ggml))
            if "linear_attn." in name:
                rounded = _in_tiles(name.rpartition("linear_attn.")[2], rounded, config, undo=True)
            parameter.data.copy_(rounded)
        writer.add_tensor(theirs, raw, raw_dtype=None if ggml == 0 else ggml)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


_FLOATS = (
    "norm.weight",
    "conv1d.weight",
    "mlp.gate.weight",
    "shared_expert_gate.weight",
    "A_log",
    "D",
)
"""How names end of what is float32 in any file, whatever its shape."""


def _in_tiles(name: str, weight: torch.Tensor, config: Any, undo: bool = False) -> torch.Tensor:
    """Value heads that share a key head lie apart; ``undo``: of a matrix, beside each other."""
    if name == "A_log":
        weight = -torch.exp(weight)
    if name == "conv1d.weight":
        weight = weight.squeeze(1)
    keys, heads = config.linear_num_key_heads, config.linear_num_value_heads
    order = torch.arange(heads).view(keys, -1).t().flatten()
    order = order.argsort() if undo else order
    if name == "norm.weight" or not config.model_type.startswith("qwen3_5"):
        return weight
    if name == "out_proj.weight":
        return weight.unflatten(1, (heads, -1))[:, order].flatten(1)
    shared = 2 * keys * config.linear_key_head_dim if "qkv" in name or "conv" in name else 0
    own = weight[shared:]
    return torch.cat([weight[:shared], own.unflatten(0, (heads, -1))[order].flatten(0, 1)])


def _of_mamba(name: str, weight: torch.Tensor, config: Any) -> torch.Tensor:
    if name == "A_log":
        return -torch.exp(weight)[:, None]
    if name == "conv1d.weight":
        return weight.squeeze(1)
    return weight.view(
        {"D": (-1, 1), "norm.weight": (config.mamba_n_groups, -1)}.get(name, weight.shape)
    )


def _parts(tensors: Mapping[str, torch.Tensor], config: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors, by names that the script of llama.cpp has a rule for. Parts of a joined one are
    views: see `write_family`."""
    shared = "mlp.shared_expert." if getattr(config, "num_local_experts", 0) else "mlp."
    for name, tensor in tensors.items():
        found = re.fullmatch(r"(model\.layers\.\d+\.)(.*)", name)
        layer, own = found.groups() if found else ("", name)
        own = re.sub(r"(mamba|linear_attn)\.dt_bias", r"\1.dt_proj.bias", own)
        match own.replace("block_sparse_moe", "mlp"):
            case "shared_mlp.input_linear.weight":
                gate, up = tensor.data.chunk(2)
                yield f"{layer}{shared}gate_proj.weight", gate
                yield f"{layer}{shared}up_proj.weight", up
            case "shared_mlp.output_linear.weight":
                yield f"{layer}{shared}down_proj.weight", tensor
            case "mlp.experts.gate_up_proj" if config.model_type != "qwen3_next":
                gate, up = tensor.data.chunk(2, dim=1)
                yield f"{layer}mlp.experts.gate_proj.weight", gate
                yield f"{layer}mlp.experts.up_proj.weight", up
            case "mlp.experts.gate_up_proj" | "mlp.experts.down_proj" as experts:
                yield f"{layer}{experts}.weight", tensor
            case "mlp.router.weight":
                yield f"{layer}mlp.gate.weight", tensor
            case "linear_attn.in_proj_qkvz.weight":
                keys, values = config.linear_num_key_heads, config.linear_num_value_heads
                value = values // keys * config.linear_value_head_dim
                sizes = [config.linear_key_head_dim] * 2 + [value] * 2
                by_key = tensor.data.unflatten(0, (keys, -1)).split(sizes, dim=1)
                *qkv, z = (part.flatten(0, 1) for part in by_key)
                yield f"{layer}linear_attn.in_proj_qkv.weight", torch.cat(qkv)
                yield f"{layer}linear_attn.in_proj_z.weight", z
            case _:
                yield layer + own, tensor


def _converted(conversion: Conversion, name: str, weight: torch.Tensor, config: Any) -> np.ndarray:
    if conversion.plus_one and re.search(r"(?<!linear_attn\.)norm\.weight$", name):
        weight = weight + 1
    if "linear_attn." in name:
        weight = _in_tiles(name.rpartition("linear_attn.")[2], weight, config)
    if "mamba." in name:
        weight = _of_mamba(name.rpartition("mamba.")[2], weight, config)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    part = name.split(".")[-2]
    if conversion.pairs and part in heads:
        halves = weight.reshape(heads[part], 2, -1, *weight.shape[1:])
        weight = halves.transpose(1, 2).reshape(weight.shape)
    return np.ascontiguousarray(weight.numpy())
