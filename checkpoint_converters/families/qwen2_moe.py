"""Qwen1.5-MoE and Qwen2-MoE: Qwen2 with many small experts and a gated shared expert."""

from __future__ import annotations

from typing import Any

from checkpoint_converters.families.family import Family, slides
from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.hf_decoder import (
    model_fields,
    read_layer,
    read_window,
    repeat_layer,
    with_windows,
)
from checkpoint_converters.hf_experts import STACKED, hf_mixture, read_experts, with_experts

QWEN_MIXTURE = hf_mixture("shared_expert").renamed(
    {"layers.{i}.mlp.shared_gate.weight": "model.layers.{i}.mlp.shared_expert_gate.weight"}
)
"""Tensor names of Qwen's mixtures with a shared expert."""


def sparse_layers(hf: HfConfig, count: int) -> list[bool]:
    """Which layers have experts, by Qwen's rule: every ``decoder_sparse_step``-th one not listed in
    ``mlp_only_layers``."""
    step, dense = hf.get("decoder_sparse_step", 1), hf.get("mlp_only_layers", [])
    if type(step) is not int or step < 1:
        raise hf.refuse(f"decoder_sparse_step is {step!r}; it must be a whole number from 1 on")
    return [layer not in dense and (layer + 1) % step == 0 for layer in range(count)]


def _windows(hf: HfConfig, count: int) -> tuple[int, ...]:
    """The window of each layer. With ``use_sliding_window``, ``layer_types`` decides; without that
    list, every other layer before ``max_window_layers`` has one."""
    used, first = hf.get("use_sliding_window", False), hf.get("max_window_layers", 28)
    marks = slides(hf, count, lambda layer: used and layer % 2 == 0 and layer < first)
    if not any(marks):
        return (0,) * count
    if not used:
        raise hf.refuse("layer_types marks layers, but use_sliding_window is not true")
    window = read_window(hf, hf.get("sliding_window", 4096))
    return tuple(window if mark else 0 for mark in marks)


def _fields(hf: HfConfig) -> dict[str, Any]:
    layer = read_layer(hf, default_kv_heads=16)
    layers = repeat_layer(hf, layer.with_mixer(bias=hf.get("qkv_bias", True)))
    experts = read_experts(
        hf,
        "num_experts",
        "moe_intermediate_size",
        normalised=hf.get("norm_topk_prob", False),
        shared_size=hf.require("shared_expert_intermediate_size"),
        shared_gate=True,
    )
    layers = with_windows(layers, _windows(hf, len(layers)))
    return model_fields(hf, with_experts(layers, experts, sparse_layers(hf, len(layers))))


QWEN2_MOE = Family("Qwen2MoeForCausalLM", "qwen2_moe", _fields, QWEN_MIXTURE, stacked=STACKED)
