"""GLM-4-0414: GLM-4 with norms after attention and feed-forward as well."""

from __future__ import annotations

from typing import Any

from checkpoint_converters.families.family import Family
from checkpoint_converters.families.glm import glm_fields, glm_in_gguf, glm_layer
from checkpoint_converters.families.phi3 import FUSED_GATE_UP
from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.hf_decoder import HF_DECODER

_L = "model.layers.{i}."

_NAMES = HF_DECODER.renamed(
    {
        "layers.{i}.attn_out_norm.weight": _L + "post_self_attn_layernorm.weight",
        "layers.{i}.mlp_out_norm.weight": _L + "post_mlp_layernorm.weight",
    }
)


def _fields(hf: HfConfig) -> dict[str, Any]:
    return glm_fields(hf, glm_layer(hf).with_norms("both"))


GLM4 = Family(
    "Glm4ForCausalLM",
    "glm4",
    _fields,
    _NAMES,
    fused=FUSED_GATE_UP,
    gguf=glm_in_gguf("glm4"),
    defaults={"eos_token_id": [151329, 151336, 151338]},
)
