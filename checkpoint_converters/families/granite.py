"""Granite 3: Llama with factors on the embedding, the scores, the residuals and the logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checkpoint_converters.containers.gguf_file import GgufFile
from checkpoint_converters.families.family import Family, GgufNames
from checkpoint_converters.gguf_decoder import GGUF_DECODER, PAIRED
from checkpoint_converters.gguf_keys import GgufKeys
from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.hf_decoder import HF_DECODER, model_fields, read_layer, repeat_layer
from trtspec.config.embedding_spec import EmbeddingSpec, HeadSpec
from trtspec.config.layer import Layers, LayerSpec


def granite_layer(hf: HfConfig) -> LayerSpec:
    """The layer, with a dense part."""
    bias = hf.get("attention_bias", False)
    layer = read_layer(hf, default_kv_heads=None).with_mixer(
        bias=bias, output_bias=bias, scale=_factor(hf, "attention_multiplier")
    )
    layer = layer.with_ffn(bias=hf.get("mlp_bias", False))
    return layer.scaled(_factor(hf, "residual_multiplier"))


def granite_fields(hf: HfConfig, layers: Layers) -> dict[str, Any]:
    """Fields of ModelConfig, of such layers."""
    tied = hf.get("tie_word_embeddings", False)
    return model_fields(
        hf,
        layers,
        embedding=EmbeddingSpec(_factor(hf, "embedding_multiplier")),
        head=HeadSpec(tied, scale=1 / _factor(hf, "logits_scaling")),
    )


def _fields(hf: HfConfig) -> dict[str, Any]:
    return granite_fields(hf, repeat_layer(hf, granite_layer(hf)))


def _factor(hf: HfConfig, key: str) -> float:
    value = hf.get(key, 1.0)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise hf.refuse(f"{key} is {value!r}; it must be above 0")
    return float(value)


def _derive(file: GgufFile, values: Mapping[str, Any]) -> dict[str, Any]:
    key = "granite.rope.scaling.finetuned"
    if file.get(key, True) is not True:
        raise file.refuse(f"{key} is {file.get(key)!r}: layers without rope; supported: true")
    usual = values["head_dim"] ** -0.5
    return {"attention_multiplier": values.get("attention_multiplier", usual)}


GRANITE_KEYS = GgufKeys(
    reads={
        "attention.scale": "attention_multiplier",
        "embedding_scale": "embedding_multiplier",
        "residual_scale": "residual_multiplier",
        "logit_scale": "logits_scaling",
    },
    derives=_derive,
)

GRANITE = Family(
    "GraniteForCausalLM",
    "granite",
    _fields,
    HF_DECODER,
    gguf=GgufNames("granite", GGUF_DECODER, paired=PAIRED, keys=GRANITE_KEYS),
    defaults={"bos_token_id": 1, "eos_token_id": 2},
)
