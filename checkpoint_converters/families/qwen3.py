"""Qwen3: norms on each query and key head, its own head_dim, no biases by default."""

from __future__ import annotations

from typing import Any

from checkpoint_converters.families.composite import Composite
from checkpoint_converters.families.family import Family, GgufNames, sliding_windows
from checkpoint_converters.gguf_decoder import GGUF_DECODER
from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.hf_decoder import (
    HF_DECODER,
    model_fields,
    read_layer,
    repeat_layer,
    with_windows,
)

# transformers' default is a constant here, not hidden_size / num_attention_heads.
_HEAD_DIM = 128


def _fields(hf: HfConfig) -> dict[str, Any]:
    bias = hf.get("attention_bias", False)
    layer = read_layer(hf, default_kv_heads=32, head_dim=_HEAD_DIM)
    layer = layer.with_mixer(qk_norm=layer.norm, bias=bias, output_bias=bias)
    layers = repeat_layer(hf, layer)
    return model_fields(hf, with_windows(layers, sliding_windows(hf, len(layers))))


QWEN3 = Family(
    "Qwen3ForCausalLM",
    "qwen3",
    _fields,
    HF_DECODER,
    draft_defaults={"head_dim": _HEAD_DIM},
    gguf=GgufNames("qwen3", GGUF_DECODER),
    composites=(Composite("Qwen3VLForConditionalGeneration", defaults={"rope_theta": 500000.0}),),
)
