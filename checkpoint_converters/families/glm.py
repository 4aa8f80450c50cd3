"""GLM-4 (2024): rope rotates neighbouring elements in half of each head; biases on q, k and v."""

from __future__ import annotations

from typing import Any

from checkpoint_converters import gguf_decoder
from checkpoint_converters.families.family import Family, GgufNames
from checkpoint_converters.families.phi3 import FUSED_GATE_UP
from checkpoint_converters.gguf_keys import GgufKeys
from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.hf_decoder import (
    HF_DECODER,
    attention_of,
    model_fields,
    read_layer,
    read_norm,
    repeat_layer,
)
from checkpoint_converters.rope import read_rope, read_rotary_dim
from trtspec.config.layer import LayerSpec


def glm_layer(hf: HfConfig) -> LayerSpec:
    """The layer of both generations."""
    layer = read_layer(hf, default_kv_heads=2, head_dim=128, norm=read_norm(hf, 1.5625e-7))
    return layer.with_mixer(
        bias=hf.get("attention_bias", True),
        rotary_dim=read_rotary_dim(hf.values, attention_of(layer).head_dim, 0.5, hf.refuse),
        interleaved=True,
    )


def glm_fields(hf: HfConfig, layer: LayerSpec) -> dict[str, Any]:
    """Fields of ModelConfig for identical layers."""
    rope = read_rope(hf.values, hf.refuse, partial=True)
    return model_fields(hf, repeat_layer(hf, layer), ropes=(rope,))


def _fields(hf: HfConfig) -> dict[str, Any]:
    return glm_fields(hf, glm_layer(hf))


def glm_in_gguf(architecture: str) -> GgufNames:
    """Either generation in GGUF files."""
    return GgufNames(
        architecture,
        gguf_decoder.GGUF_DECODER,
        fused={**gguf_decoder.FUSED_QKV, **gguf_decoder.FUSED_GATE_UP},
        keys=GgufKeys(partial_rotation=True),
    )


GLM = Family(
    "GlmForCausalLM",
    "glm",
    _fields,
    HF_DECODER,
    fused=FUSED_GATE_UP,
    gguf=glm_in_gguf("chatglm"),
    defaults={"eos_token_id": [151329, 151336, 151338]},
)
