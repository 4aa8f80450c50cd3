"""llama.cpp's tensor names for Llama-like decoders of all families."""

from __future__ import annotations

import re
from dataclasses import replace

from checkpoint_converters.gguf_config import (
    EMBEDDING,
    HEAD,
    LONG_FACTORS,
    ROPE_FACTORS,
    SHORT_FACTORS,
)
from checkpoint_converters.names import NameMap

_B = "blk.{i}."

GGUF_DECODER = NameMap(
    {
        "embed.weight": EMBEDDING,
        "layers.{i}.input_norm.weight": _B + "attn_norm.weight",
        "layers.{i}.input_norm.bias": _B + "attn_norm.bias",
        "layers.{i}.attn.q.weight": _B + "attn_q.weight",
        "layers.{i}.attn.q.bias": _B + "attn_q.bias",
        "layers.{i}.attn.k.weight": _B + "attn_k.weight",
        "layers.{i}.attn.k.bias": _B + "attn_k.bias",
        "layers.{i}.attn.v.weight": _B + "attn_v.weight",
        "layers.{i}.attn.v.bias": _B + "attn_v.bias",
        "layers.{i}.attn.o.weight": _B + "attn_output.weight",
        "layers.{i}.attn.o.bias": _B + "attn_output.bias",
        "layers.{i}.attn.q_norm.weight": _B + "attn_q_norm.weight",
        "layers.{i}.attn.k_norm.weight": _B + "attn_k_norm.weight",
        "layers.{i}.attn_out_norm.weight": _B + "post_attention_norm.weight",
        "layers.{i}.post_attention_norm.weight": _B + "ffn_norm.weight",
        "layers.{i}.post_attention_norm.bias": _B + "ffn_norm.bias",
        "layers.{i}.mlp_out_norm.weight": _B + "post_ffw_norm.weight",
        "layers.{i}.mlp.gate.weight": _B + "ffn_gate.weight",
        "layers.{i}.mlp.gate.bias": _B + "ffn_gate.bias",
        "layers.{i}.mlp.up.weight": _B + "ffn_up.weight",
        "layers.{i}.mlp.up.bias": _B + "ffn_up.bias",
        "layers.{i}.mlp.down.weight": _B + "ffn_down.weight",
        "layers.{i}.mlp.down.bias": _B + "ffn_down.bias",
        "norm.weight": "output_norm.weight",
        "norm.bias": "output_norm.bias",
        "head.weight": HEAD,
    },
    ignored=(re.escape(ROPE_FACTORS),),  # the config is made of them
)

GGUF_LONGROPE = replace(
    GGUF_DECODER, ignored=tuple(re.escape(name) for name in (SHORT_FACTORS, LONG_FACTORS))
)
"""The same for files with two sets of factors."""

PAIRED = {"attn.q": "num_heads", "attn.k": "num_kv_heads"}
"""What llama.cpp reorders in families like Llama (see `Family.paired`)."""

FUSED_QKV = {"blk.{i}.attn_qkv": ("attn.q", "attn.k", "attn.v")}
FUSED_GATE_UP = {"blk.{i}.ffn_up": ("mlp.gate", "mlp.up")}
