"""Command R7B and A: Command R with a window on three of four layers and no rope on the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from checkpoint_converters.families.cohere import KEYS, cohere_head, cohere_layer
from checkpoint_converters.families.family import Family, GgufNames, slides
from checkpoint_converters.gguf_decoder import GGUF_DECODER
from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.hf_decoder import HF_DECODER, model_fields, read_window, repeat_layer
from trtspec.config.layer import Layers


def _fields(hf: HfConfig) -> dict[str, Any]:
    layers = repeat_layer(hf, cohere_layer(hf))
    pattern = hf.get("sliding_window_pattern", 4)
    marks = slides(hf, len(layers), lambda i: (i + 1) % pattern != 0)
    window = read_window(hf, hf.get("sliding_window", 4096))
    specs = (
        layer.with_mixer(rope=0 if mark else None, window=window if mark else 0)
        for layer, mark in zip(layers, marks, strict=True)
    )
    return model_fields(hf, Layers.of(specs), head=cohere_head(hf))


COHERE2 = Family(
    "Cohere2ForCausalLM",
    "cohere2",
    _fields,
    HF_DECODER,
    gguf=GgufNames("cohere2", GGUF_DECODER, keys=replace(KEYS, window_period=4)),
    defaults={"bos_token_id": 5, "eos_token_id": 255001},
)
