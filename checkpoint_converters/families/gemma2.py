"""Gemma 2: norms before and after each part, soft caps, a window on every other layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from checkpoint_converters.containers.gguf_file import GgufFile
from checkpoint_converters.families.family import Family, GgufNames, slides
from checkpoint_converters.families.gemma import gemma_ends, gemma_layer
from checkpoint_converters.gguf_decoder import GGUF_DECODER
from checkpoint_converters.gguf_keys import GgufKeys
from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.hf_decoder import (
    HF_DECODER,
    model_fields,
    read_activation,
    read_window,
    repeat_layer,
    with_windows,
)
from trtspec.config.layer import LayerSpec

_L = "model.layers.{i}."

GEMMA_DECODER = HF_DECODER.renamed(
    {
        "layers.{i}.attn_out_norm.weight": _L + "post_attention_layernorm.weight",
        "layers.{i}.post_attention_norm.weight": _L + "pre_feedforward_layernorm.weight",
        "layers.{i}.mlp_out_norm.weight": _L + "post_feedforward_layernorm.weight",
    }
)


def sandwiched(hf: HfConfig, default_cap: float | None) -> LayerSpec:
    """The layer of Gemma 2, shared with Gemma 3, without a window. ``default_cap``: the cap on
    scores if config.json lacks the key; a null there means no cap."""
    activation = read_activation(hf, "hidden_activation", "gelu_pytorch_tanh")
    layer = gemma_layer(hf, activation, default_kv_heads=4).with_norms("both")
    scalar = hf.get("query_pre_attn_scalar", 256)
    if isinstance(scalar, bool) or not isinstance(scalar, (int, float)) or not scalar > 0:
        raise hf.refuse(f"query_pre_attn_scalar is {scalar!r}; it must be above 0")
    cap = hf.values.get("attn_logit_softcapping", default_cap)
    return layer.with_mixer(scale=scalar**-0.5, soft_cap=cap)


def _fields(hf: HfConfig) -> dict[str, Any]:
    layers = repeat_layer(hf, sandwiched(hf, 50.0))
    marks = slides(hf, len(layers), lambda i: i % 2 == 0)
    window = read_window(hf, hf.get("sliding_window", 4096))
    layers = with_windows(layers, (window if mark else 0 for mark in marks))
    said = hf.replacing({"final_logit_softcapping": 30.0})
    return model_fields(hf, layers, **gemma_ends(said))


def scalar_by_depth(deepest: int) -> Callable[[GgufFile, Mapping[str, Any]], dict[str, Any]]:
    """query_pre_attn_scalar, which GGUF files do not store, by llama.cpp's rule: the head size, or
    hidden_size / num_attention_heads for the model with this number of layers."""

    def derive(_: GgufFile, values: Mapping[str, Any]) -> dict[str, Any]:
        share = values["hidden_size"] / values["num_attention_heads"]
        is_deepest = values["num_hidden_layers"] == deepest
        return {"query_pre_attn_scalar": share if is_deepest else values["head_dim"]}

    return derive


_CAPS = ("attn_logit_softcapping", "final_logit_softcapping")
_KEYS = GgufKeys(
    reads={key: key for key in _CAPS},
    window_period=2,
    default_window=4096,
    derives=scalar_by_depth(46),
)

GEMMA2 = Family(
    "Gemma2ForCausalLM",
    "gemma2",
    _fields,
    GEMMA_DECODER,
    gguf=GgufNames("gemma2", GGUF_DECODER, keys=_KEYS, norms_plus_one=True),
    defaults={"bos_token_id": 2, "eos_token_id": 1},
)
