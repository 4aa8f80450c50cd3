"""Mistral: Llama without biases, with a sliding window on every layer."""

from __future__ import annotations

from typing import Any

from checkpoint_converters.families.composite import Composite
from checkpoint_converters.families.family import Family, marked
from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.hf_decoder import (
    HF_DECODER,
    model_fields,
    read_layer,
    read_window,
    repeat_layer,
)


def _fields(hf: HfConfig) -> dict[str, Any]:
    # Absent and null differ: transformers' default is a window of 4096, null means none.
    window = hf.values.get("sliding_window", 4096)
    marks = set(marked(hf) or ())
    if marks - {window is not None}:
        raise hf.refuse(
            f"layer_types {', '.join(sorted(set(hf.require('layer_types'))))} with sliding_window "
            f"{window} are not supported; supported: one kind for all layers, as sliding_window "
            "says"
        )
    layer = read_layer(hf, default_kv_heads=8).with_mixer(window=read_window(hf, window))
    return model_fields(hf, repeat_layer(hf, layer))


MISTRAL = Family(
    "MistralForCausalLM",
    "mistral",
    _fields,
    HF_DECODER,
    composites=(Composite("Mistral3ForConditionalGeneration"),),
    defaults={"bos_token_id": 1, "eos_token_id": 2},
)
