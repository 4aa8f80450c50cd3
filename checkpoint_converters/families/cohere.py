"""Command R and R+: attention and feed-forward in parallel after one layer norm, scaled logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checkpoint_converters.containers.gguf_file import GgufFile
from checkpoint_converters.families.family import Family, GgufNames
from checkpoint_converters.gguf_decoder import GGUF_DECODER
from checkpoint_converters.gguf_keys import GgufKeys
from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.hf_decoder import HF_DECODER, model_fields, read_layer, repeat_layer
from trtspec.config.embedding_spec import HeadSpec
from trtspec.config.layer import LayerSpec
from trtspec.config.norm_spec import NormSpec


def cohere_layer(hf: HfConfig) -> LayerSpec:
    """The layer of both generations."""
    bias = hf.get("attention_bias", False)
    norm = NormSpec(hf.get("layer_norm_eps", 1e-5), "layer")
    layer = read_layer(hf, default_kv_heads=None, norm=norm).with_mixer(
        bias=bias, output_bias=bias, interleaved=True
    )
    return layer.in_parallel()


def cohere_head(hf: HfConfig) -> HeadSpec:
    """The head of both generations."""
    return HeadSpec(hf.get("tie_word_embeddings", True), scale=hf.get("logit_scale", 0.0625))


def _fields(hf: HfConfig) -> dict[str, Any]:
    layer = cohere_layer(hf)
    if hf.get("use_qk_norm", False):  # Command R+
        layer = layer.with_mixer(qk_norm=layer.norm, qk_norm_over="own")
    return model_fields(hf, repeat_layer(hf, layer), head=cohere_head(hf))


def derive(file: GgufFile, values: Mapping[str, Any]) -> dict[str, Any]:
    """What GGUF files of both generations express by the presence of a tensor or the absence of a
    scale."""
    has_norm = "blk.0.attn_q_norm.weight" in file.tensors
    return {"use_qk_norm": has_norm, "logit_scale": values.get("logit_scale", 1.0)}


KEYS = GgufKeys(
    epsilon=("attention.layer_norm_epsilon", "layer_norm_eps"),
    reads={"logit_scale": "logit_scale"},
    derives=derive,
)

COHERE = Family(
    "CohereForCausalLM",
    "cohere",
    _fields,
    HF_DECODER,
    gguf=GgufNames("command-r", GGUF_DECODER, keys=KEYS),
    defaults={"bos_token_id": 5, "eos_token_id": 255001, "rope_theta": 500000.0},
)
