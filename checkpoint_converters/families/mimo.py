"""MiMo: Qwen2 with a head size of its own; its prediction modules are read apart."""

from __future__ import annotations

from checkpoint_converters.draft_names import FC
from checkpoint_converters.families.family import Family
from checkpoint_converters.families.prediction_modules import (
    EMBEDDING_NORM,
    LAYER,
    NORM,
    STATE_NORM,
    PredictionModules,
)
from checkpoint_converters.families.qwen2 import qwen2_fields
from checkpoint_converters.hf_decoder import HF_DECODER

_ROOT = "model.mtp_layers.{n}."

MIMO = Family("MiMoForCausalLM", "mimo", qwen2_fields, HF_DECODER)
MIMO_MODULES = PredictionModules(
    "MiMo",
    _ROOT,
    {
        LAYER: _ROOT,
        FC: _ROOT + "input_proj.weight",
        EMBEDDING_NORM: _ROOT + "token_layernorm.weight",
        STATE_NORM: _ROOT + "hidden_layernorm.weight",
        NORM: _ROOT + "final_layernorm.weight",
    },
    state_first=True,
)
