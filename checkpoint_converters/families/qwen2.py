"""Qwen2 and Qwen2.5: biases on q, k and v; an optional sliding window on some layers."""

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


def qwen2_fields(hf: HfConfig) -> dict[str, Any]:
    """Fields of ModelConfig except architecture and dtype."""
    if hf.get("use_mrope", False):
        raise hf.refuse("use_mrope true is not supported; supported: false")
    layers = repeat_layer(hf, read_layer(hf, default_kv_heads=32).with_mixer(bias=True))
    return model_fields(hf, with_windows(layers, sliding_windows(hf, len(layers))))


QWEN2 = Family(
    "Qwen2ForCausalLM",
    "qwen2",
    qwen2_fields,
    HF_DECODER,
    gguf=GgufNames("qwen2", GGUF_DECODER),
    composites=(
        Composite(
            "Qwen2_5_VLForConditionalGeneration",
            defaults={
                "rope_theta": 1000000.0,
                "rms_norm_eps": 1e-5,
                "bos_token_id": 151643,
                "eos_token_id": 151645,
            },
        ),
    ),
)
