"""Granite 3 MoE: Granite with stacked experts and a softmax over only the chosen scores."""

from __future__ import annotations

from typing import Any

from checkpoint_converters.families.family import Family
from checkpoint_converters.families.granite import granite_fields, granite_layer
from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.hf_decoder import HF_DECODER, repeat_layer
from checkpoint_converters.hf_experts import PROJECTIONS, expert_names, read_experts, with_experts
from checkpoint_converters.stacked import Stacked

_B = "model.layers.{i}.block_sparse_moe."
ROUTER = _B + "router.layer.weight"
_GATE_UP, _DOWN = Stacked(("gate", "up")), Stacked(("down",))
GRANITE_EXPERTS = {
    _B + "input_linear.weight": _GATE_UP,
    _B + "output_linear.weight": _DOWN,
    _B + "experts.gate_up_proj": _GATE_UP,
    _B + "experts.down_proj": _DOWN,
}
ROUTERS = {_B + "router.weight": ROUTER}
"""transformers 5's names."""


def _fields(hf: HfConfig) -> dict[str, Any]:
    layers = repeat_layer(hf, granite_layer(hf))
    experts = read_experts(hf, "num_local_experts", "intermediate_size", router="softmax_of_chosen")
    return granite_fields(hf, with_experts(layers, experts, [True] * len(layers)))


GRANITE_MOE = Family(
    "GraniteMoeForCausalLM",
    "granitemoe",
    _fields,
    HF_DECODER.renamed(expert_names(ROUTER, PROJECTIONS)),
    stacked=GRANITE_EXPERTS,
    also=ROUTERS,
    defaults={"bos_token_id": 1, "eos_token_id": 2},
)
