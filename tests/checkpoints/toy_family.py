"""A model family as another package would add it: config.json and tensor names, in one file.

``blocks`` layers of ``width`` elements; every second one looks back ``look_back`` tokens only.
"""

from __future__ import annotations

from typing import Any

from checkpoint_converters.families.family import Family
from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.names import NameMap
from trtspec.config.feed_forwards.dense import DenseSpec
from trtspec.config.layer import Layers, LayerSpec
from trtspec.config.mixers.attention import AttentionSpec
from trtspec.config.norm_spec import NormSpec
from trtspec.config.rope import RopeConfig


def _fields(hf: HfConfig) -> dict[str, Any]:
    norm, width, heads = NormSpec(hf.require("norm_eps")), hf.require("width"), hf.require("heads")
    mixer = AttentionSpec(heads, hf.require("kv_heads"), width // heads, bias=True)
    thinks = DenseSpec(hf.require("inner")) if hf.get("thinks", True) else None
    plain = LayerSpec(mixer, thinks, norm)
    local = plain.with_mixer(window=hf.require("look_back"))
    return {
        "vocab_size": hf.require("tokens"),
        "hidden_size": width,
        "layers": Layers.of(local if i % 2 else plain for i in range(hf.require("blocks"))),
        "norm": norm,
        "max_position_embeddings": hf.require("context"),
        "ropes": (RopeConfig(hf.require("theta")),),
    }


_NAMES = {
    "embed.weight": "tokens.table",
    "layers.{i}.input_norm.weight": "block{i}.norm_1",
    **{f"layers.{{i}}.attn.{p}.weight": f"block{{i}}.look.{p}" for p in "qkvo"},
    **{f"layers.{{i}}.attn.{p}.bias": f"block{{i}}.look.{p}_shift" for p in "qkv"},
    "layers.{i}.post_attention_norm.weight": "block{i}.norm_2",
    "layers.{i}.mlp.gate.weight": "block{i}.think.w1",
    "layers.{i}.mlp.up.weight": "block{i}.think.w3",
    "layers.{i}.mlp.down.weight": "block{i}.think.w2",
    "norm.weight": "last_norm",
    "head.weight": "say",
}

TOY = Family("ToyForCausalLM", "toy", _fields, NameMap(_NAMES, ignored=("notes",)))
