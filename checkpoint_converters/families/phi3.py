"""Phi-3 and Phi-4: Llama with fused matrices, rope on part of each head, and longrope."""

from __future__ import annotations

from typing import Any

from checkpoint_converters import gguf_decoder
from checkpoint_converters.families.family import Family, GgufNames
from checkpoint_converters.gguf_keys import GgufKeys
from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.hf_decoder import (
    HF_DECODER,
    attention_of,
    model_fields,
    read_layer,
    read_norm,
    read_window,
    repeat_layer,
)
from checkpoint_converters.rope import read_rope, read_rotary_dim

FUSED_QKV = {"model.layers.{i}.self_attn.qkv_proj": ("attn.q", "attn.k", "attn.v")}
FUSED_GATE_UP = {"model.layers.{i}.mlp.gate_up_proj": ("mlp.gate", "mlp.up")}


def _fields(hf: HfConfig) -> dict[str, Any]:
    values = _with_longrope(hf.values)
    layer = read_layer(hf, default_kv_heads=None, norm=read_norm(hf, 1e-5))
    layer = layer.with_mixer(window=read_window(hf, hf.get("sliding_window")))
    size = read_rotary_dim(values, attention_of(layer).head_dim, 1.0, hf.refuse)
    layer = layer.with_mixer(rotary_dim=size)
    rope = read_rope(values, hf.refuse, partial=True)
    return model_fields(hf, repeat_layer(hf, layer), ropes=(rope,))


def _with_longrope(values: Any) -> dict[str, Any]:
    """The values with longrope spelled this way; early checkpoints call it su or yarn."""
    found = dict(values)
    for key in ("rope_scaling", "rope_parameters"):
        given = found.get(key)
        if isinstance(given, dict):
            kind = given.get("rope_type", given.get("type"))
            if kind in ("su", "yarn"):
                found[key] = {**given, "rope_type": "longrope"}
    return found


_KEYS = GgufKeys(
    reads={"attention.sliding_window": "sliding_window"}, partial_rotation=True, longrope=True
)
_IN_GGUF = GgufNames(
    "phi3",
    gguf_decoder.GGUF_LONGROPE,
    fused={**gguf_decoder.FUSED_QKV, **gguf_decoder.FUSED_GATE_UP},
    keys=_KEYS,
)

PHI3 = Family(
    "Phi3ForCausalLM",
    "phi3",
    _fields,
    HF_DECODER,
    fused={**FUSED_QKV, **FUSED_GATE_UP},
    gguf=_IN_GGUF,
    defaults={"bos_token_id": 1, "eos_token_id": 32000},
)
