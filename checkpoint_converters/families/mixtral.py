"""Mixtral: Mistral with eight experts in place of the feed-forward part."""

from __future__ import annotations

from typing import Any

from checkpoint_converters.families.family import Family
from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.hf_decoder import (
    HF_DECODER,
    model_fields,
    read_layer,
    read_norm,
    read_window,
    repeat_layer,
)
from checkpoint_converters.hf_experts import STACKED, expert_names, read_experts, with_experts

_B = "model.layers.{i}.block_sparse_moe."
_E = _B + "experts.{e}."
_EXPERTS = (_E + "w1.weight", _E + "w3.weight", _E + "w2.weight")
_NAMES = HF_DECODER.renamed(expert_names(_B + "gate.weight", _EXPERTS))


def _fields(hf: HfConfig) -> dict[str, Any]:
    layer = read_layer(hf, default_kv_heads=8, norm=read_norm(hf, 1e-5))
    window = read_window(hf, hf.get("sliding_window"))
    layers = repeat_layer(hf, layer.with_mixer(window=window))
    experts = read_experts(hf, "num_local_experts", "intermediate_size")
    return model_fields(hf, with_experts(layers, experts, [True] * len(layers)))


MIXTRAL = Family(
    "MixtralForCausalLM",
    "mixtral",
    _fields,
    _NAMES,
    stacked=STACKED,
    also={"model.layers.{i}.mlp.gate.weight": _B + "gate.weight"},
    defaults={"bos_token_id": 1, "eos_token_id": 2, "rope_theta": 1000000.0},
)
