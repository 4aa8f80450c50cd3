"""StarCoder2: layer norms with biases, an ungated feed-forward part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checkpoint_converters.containers.gguf_file import GgufFile
from checkpoint_converters.families.family import Family, GgufNames
from checkpoint_converters.gguf_decoder import GGUF_DECODER
from checkpoint_converters.gguf_keys import GgufKeys
from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.hf_decoder import (
    HF_DECODER,
    model_fields,
    read_activation,
    read_layer,
    read_window,
    repeat_layer,
)
from trtspec.config.embedding_spec import HeadSpec
from trtspec.config.norm_spec import NormSpec

_L = "model.layers.{i}."

_NAMES = HF_DECODER.renamed(
    {
        "layers.{i}.input_norm.bias": _L + "input_layernorm.bias",
        "layers.{i}.post_attention_norm.bias": _L + "post_attention_layernorm.bias",
        "layers.{i}.mlp.up.weight": _L + "mlp.c_fc.weight",
        "layers.{i}.mlp.up.bias": _L + "mlp.c_fc.bias",
        "layers.{i}.mlp.down.weight": _L + "mlp.c_proj.weight",
        "layers.{i}.mlp.down.bias": _L + "mlp.c_proj.bias",
        "norm.bias": "model.norm.bias",
    }
)


def _fields(hf: HfConfig) -> dict[str, Any]:
    bias = hf.get("use_bias", True)
    activation = read_activation(hf, "hidden_act", "gelu_pytorch_tanh")
    norm = NormSpec(hf.get("norm_epsilon", 1e-5), "layer", bias=True)
    layer = read_layer(hf, default_kv_heads=2, activation=activation, norm=norm)
    window = read_window(hf, hf.get("sliding_window"))
    layer = layer.with_mixer(bias=bias, output_bias=bias, window=window)
    layer = layer.with_ffn(gated=False, bias=bias)
    tied = hf.get("tie_word_embeddings", True)
    return model_fields(hf, repeat_layer(hf, layer), head=HeadSpec(tied))


def _derive(_: GgufFile, values: Mapping[str, Any]) -> dict[str, Any]:
    return {"use_bias": values["attention_bias"]}


_KEYS = GgufKeys(epsilon=("attention.layer_norm_epsilon", "norm_epsilon"), derives=_derive)

# llama.cpp runs it without its window.
STARCODER2 = Family(
    "Starcoder2ForCausalLM",
    "starcoder2",
    _fields,
    _NAMES,
    gguf=GgufNames("starcoder2", GGUF_DECODER, keys=_KEYS),
    defaults={"bos_token_id": 50256, "eos_token_id": 50256},
)
