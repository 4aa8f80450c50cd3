"""Gemma 4 (text): layers that share K and V, keys that are values, per-layer embeddings, larger
heads without a window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checkpoint_converters.families.composite import Composite
from checkpoint_converters.families.family import Family, slides
from checkpoint_converters.families.gemma2 import GEMMA_DECODER
from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.hf_decoder import (
    model_fields,
    read_activation,
    read_layer,
    read_window,
    repeat_layer,
)
from checkpoint_converters.rope import read_ropes_by_kind
from trtspec.config.embedding_spec import EmbeddingSpec, HeadSpec, PerLayerSpec
from trtspec.config.layer import Layers, LayerSpec
from trtspec.config.norm_spec import NormSpec

_L = "model.layers.{i}."
_TURNING = 0.25  # of a head without a window, where config.json does not say

_NAMES = GEMMA_DECODER.renamed(
    {
        "layers.{i}.output_scale": _L + "layer_scalar",
        "layers.{i}.per_layer.gate.weight": _L + "per_layer_input_gate.weight",
        "layers.{i}.per_layer.out.weight": _L + "per_layer_projection.weight",
        "layers.{i}.per_layer.norm.weight": _L + "post_per_layer_input_norm.weight",
        "per_layer.embed.weight": "model.embed_tokens_per_layer.weight",
        "per_layer.projection.weight": "model.per_layer_model_projection.weight",
        "per_layer.norm.weight": "model.per_layer_projection_norm.weight",
    }
).ignoring(
    # Layers that read K and V of others may have been saved with their own.
    r"model\.layers\.\d+\.self_attn\.[kv]_(proj|norm)\.weight"
)


def gemma4_layers(hf: HfConfig) -> tuple[LayerSpec, ...]:
    """The layers, without K and V of others and per-layer embeddings."""
    for key, value in (("use_bidirectional_attention", "all"), ("enable_moe_block", True)):
        if hf.get(key) == value:
            raise hf.refuse(f"{key} {value!r} is not supported".replace("True", "true"))
    norm = NormSpec(hf.get("rms_norm_eps", 1e-6))
    activation = read_activation(hf, "hidden_activation", "gelu_pytorch_tanh")
    layer = read_layer(hf, 4, head_dim=256, activation=activation, norm=norm)
    bias = hf.get("attention_bias", False)
    layer = layer.with_norms("both").with_output_scale()
    layer = layer.with_mixer(bias=bias, output_bias=bias, qk_norm=norm, v_norm=norm, scale=1.0)
    marks = slides(hf, len(repeat_layer(hf, layer)), lambda i: (i + 1) % 6 != 0)
    marks = (*marks[:-1], False)  # whatever is said of the last one
    window = read_window(hf, hf.get("sliding_window", 512))
    sliding = layer.with_mixer(rope=1, window=window)
    return tuple(
        sliding if mark else layer.with_mixer(rope=0, **_global(hf, i))
        for i, mark in enumerate(marks)
    )


def _global(hf: HfConfig, layer: int) -> dict[str, Any]:
    """The heads of a layer without a window: transformers 5 says them layer by layer, other files
    for all of these."""
    same_values = hf.get("attention_k_eq_v", False)
    told = hf.get("per_layer_config")
    if isinstance(told, Mapping):
        own = told.get(str(layer), {})
        size, heads = own.get("head_dim"), own.get("num_key_value_heads")
    else:
        size = hf.get("global_head_dim", 512)
        heads = hf.get("num_global_key_value_heads") if same_values else None
    given = {"head_dim": size, "num_kv_heads": heads}
    return {"values_are_keys": same_values, **{k: v for k, v in given.items() if v is not None}}


def _shared(hf: HfConfig, layers: tuple[LayerSpec, ...]) -> tuple[LayerSpec, ...]:
    """The last ones read K and V of the last layer of their kind before them."""
    count = hf.get("num_kv_shared_layers", 0)
    if type(count) is not int or not 0 <= count < len(layers):
        raise hf.refuse(
            f"num_kv_shared_layers is {count!r}; it must be from 0 to {len(layers) - 1}, one less "
            "than there are layers"
        )
    first = len(layers) - count
    factor = 2 if hf.get("use_double_wide_mlp", False) else 1
    inner = factor * hf.require("intermediate_size")
    found = list(layers[:first])
    for i, layer in enumerate(layers[first:], start=first):
        sources = [j for j in range(first) if layers[j].window == layer.window]
        if not sources:
            raise hf.refuse(
                f"layer {i} shares K and V (num_kv_shared_layers {count}), but no layer before "
                f"{first} is of its kind"
            )
        found.append(layer.with_mixer(kv_from=sources[-1]).with_ffn(intermediate_size=inner))
    return tuple(found)


def _fields(hf: HfConfig) -> dict[str, Any]:
    layers, hidden = _shared(hf, gemma4_layers(hf)), hf.require("hidden_size")
    size = hf.get("hidden_size_per_layer_input", 256)
    given = None
    if size:
        rows, vocab = hf.get("vocab_size_per_layer_input", 262144), hf.require("vocab_size")
        if rows != vocab:
            raise hf.refuse(
                f"vocab_size_per_layer_input is {rows}, vocab_size {vocab}; supported: the same"
            )
        activation = read_activation(hf, "hidden_activation", "gelu_pytorch_tanh")
        layers = tuple(layer.with_per_layer(size, activation) for layer in layers)
        given = PerLayerSpec(size, layers[0].norm, size**0.5, hidden**-0.5, 2**-0.5)
    ropes = read_ropes_by_kind(hf.values, hf.refuse, 1000000.0, 10000.0)
    return model_fields(
        hf,
        Layers.of(layers),
        ropes=ropes,
        embedding=EmbeddingSpec(hidden**0.5, given, scales_borrowed=True),
        head=HeadSpec(
            hf.get("tie_word_embeddings", True), soft_cap=hf.get("final_logit_softcapping")
        ),
    )


GEMMA4 = Family(
    "Gemma4ForCausalLM",
    "gemma4_text",
    _fields,
    _NAMES,
    composites=(
        Composite(
            "Gemma4ForConditionalGeneration",
            others=(r"(model\.)?(vision_tower|audio_tower|embed_vision|embed_audio)\..+",),
        ),
    ),
)
