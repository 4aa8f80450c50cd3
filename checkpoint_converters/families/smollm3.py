"""SmolLM3: Llama in which some layers have no rope."""

from __future__ import annotations

from typing import Any

from checkpoint_converters.families.family import Family, GgufNames, slides
from checkpoint_converters.gguf_decoder import GGUF_DECODER, PAIRED
from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.hf_decoder import (
    HF_DECODER,
    model_fields,
    read_layer,
    read_window,
    repeat_layer,
)
from trtspec.config.embedding_spec import HeadSpec
from trtspec.config.layer import Layers


def _fields(hf: HfConfig) -> dict[str, Any]:
    bias = hf.get("attention_bias", False)
    layer = read_layer(hf, default_kv_heads=4).with_mixer(bias=bias, output_bias=bias)
    layers = list(repeat_layer(hf, layer.with_ffn(bias=hf.get("mlp_bias", False))))
    turns = _turning(hf, len(layers))
    window = hf.get("sliding_window") if hf.get("use_sliding_window", False) else None
    marks = slides(hf, len(layers), lambda i: window is not None and not turns[i])
    size = read_window(hf, window)
    specs = (
        layer.with_mixer(rope=0 if turn else None, window=size if mark else 0)
        for layer, turn, mark in zip(layers, turns, marks, strict=True)
    )
    tied = hf.get("tie_word_embeddings", True)
    return model_fields(hf, Layers.of(specs), head=HeadSpec(tied))


def _turning(hf: HfConfig, num_layers: int) -> list[bool]:
    """Which layers have rope: those that no_rope_layers (sic) marks with 1, or all but every
    no_rope_layer_interval-th."""
    given = hf.get("no_rope_layers")
    if given is None:
        interval = hf.get("no_rope_layer_interval", 4)
        if type(interval) is not int or interval < 1:
            raise hf.refuse(f"no_rope_layer_interval is {interval!r}; it must be at least 1")
        return [(i + 1) % interval != 0 for i in range(num_layers)]
    if not isinstance(given, list) or len(given) < num_layers or not set(given) <= {0, 1}:
        raise hf.refuse(
            f"no_rope_layers is {given!r:.80}; it must list 0 or 1 for each of {num_layers} layers"
        )
    return [bool(mark) for mark in given[:num_layers]]


SMOLLM3 = Family(
    "SmolLM3ForCausalLM",
    "smollm3",
    _fields,
    HF_DECODER,
    gguf=GgufNames("smollm3", GGUF_DECODER, paired=PAIRED),
    defaults={"bos_token_id": 128000, "eos_token_id": 128001, "rope_theta": 2000000.0},
)
