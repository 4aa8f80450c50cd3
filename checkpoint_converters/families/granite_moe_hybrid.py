"""Granite 4: Granite's layers with Mamba-2 in place of most attention, with and without experts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from checkpoint_converters.containers.gguf_file import GgufFile
from checkpoint_converters.families.family import Family, GgufNames
from checkpoint_converters.families.granite import GRANITE_KEYS, granite_fields, granite_layer
from checkpoint_converters.families.granite_moe import GRANITE_EXPERTS, ROUTER, ROUTERS
from checkpoint_converters.gguf_decoder import GGUF_DECODER, PAIRED
from checkpoint_converters.gguf_experts import EXPERT_NAMES, STACKED_EXPERTS
from checkpoint_converters.gguf_mamba import MAMBA_CHANGES, MAMBA_NAMES, has_bias, mamba_values
from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.hf_decoder import HF_DECODER, read_activation
from checkpoint_converters.hf_experts import PROJECTIONS, expert_names, read_experts
from trtspec.config.feed_forwards.base import FeedForwardSpec
from trtspec.config.feed_forwards.dense import DenseSpec
from trtspec.config.layer import Layers
from trtspec.config.mixers.mamba2 import Mamba2Spec
from trtspec.config.norm_spec import NormSpec

_MAMBA = {
    "mamba": True,
    "linear_attention": True,
    "attention": False,
    "full_attention": False,
}
"""Whether layers of each kind have Mamba-2; kinds in the spellings of checkpoints and of
transformers 5."""

_L = "model.layers.{i}."
_GATE_UP, _DOWN = ("mlp.gate", "mlp.up"), "mlp.down"
_SHARED = ("mlp.shared.gate", "mlp.shared.up"), "mlp.shared.down"


def _names() -> dict[str, str]:
    """Names that Granite 3 lacks. Without experts there is only the shared part."""
    found = expert_names(ROUTER, PROJECTIONS)
    for (gate, up), down in ((_GATE_UP, _DOWN), _SHARED):
        found |= {f"layers.{{i}}.{gate}.weight": _L + "shared_mlp.gate.weight"}
        found |= {f"layers.{{i}}.{up}.weight": _L + "shared_mlp.up.weight"}
        found |= {f"layers.{{i}}.{down}.weight": _L + "shared_mlp.output_linear.weight"}
    for ours, theirs in (("in_proj", "in_proj"), ("out_proj", "out_proj"), ("conv", "conv1d")):
        for kind in ("weight", "bias"):
            found[f"layers.{{i}}.attn.{ours}.{kind}"] = f"{_L}mamba.{theirs}.{kind}"
    for ours, theirs in (("a_log", "A_log"), ("dt_bias", "dt_bias"), ("skip", "D")):
        found[f"layers.{{i}}.attn.{ours}"] = f"{_L}mamba.{theirs}"
    return found | {"layers.{i}.attn.norm.weight": _L + "mamba.norm.weight"}


def _fields(hf: HfConfig) -> dict[str, Any]:
    turns = hf.get("position_embedding_type", "nope")
    if turns not in ("nope", "rope"):
        raise hf.refuse(
            f"position_embedding_type {turns!r} is not supported; supported: rope, nope"
        )
    layer = granite_layer(hf)
    attention = layer.with_mixer(rope=0 if turns == "rope" else None)
    layers = [replace(attention, ffn=_feed_forward(hf))] * hf.require("num_hidden_layers")
    marks = _marks(hf, len(layers))
    mixer = _mamba(hf, layer.norm) if any(marks) else None
    return granite_fields(
        hf,
        Layers.of(
            layer if mixer is None or not mark else replace(layer, mixer=mixer)
            for layer, mark in zip(layers, marks, strict=True)
        ),
    )


def _marks(hf: HfConfig, count: int) -> list[bool]:
    """Which layers have Mamba-2."""
    kinds = hf.get("layer_types", hf.get("layers_block_type", ["mamba"] * count))
    other = sorted({str(kind) for kind in kinds} - set(_MAMBA))
    if other:
        raise hf.refuse(
            f"layer_types {', '.join(other)} are not supported; supported: {', '.join(_MAMBA)}"
        )
    if len(kinds) != count:
        raise hf.refuse(f"layer_types names {len(kinds)} layers, the model has {count}")
    return [_MAMBA[kind] for kind in kinds]


def _mamba(hf: HfConfig, norm: NormSpec) -> Mamba2Spec:
    activation, inner = hf.get("hidden_act"), hf.get("mamba_expand") * hf.require("hidden_size")
    if activation != "silu":
        raise hf.refuse(f"hidden_act of Mamba-2 is {activation!r}; supported: silu")
    heads = hf.get("mamba_n_heads")
    size = hf.get("mamba_d_head")
    size = inner // heads if size == "auto" else size
    if heads * size != inner:
        raise hf.refuse(
            f"mamba_n_heads {heads} of mamba_d_head {size} elements are not mamba_expand * "
            f"hidden_size = {inner}"
        )
    least, most = map(_number, hf.get("time_step_limit"))
    return Mamba2Spec(
        num_heads=heads,
        head_dim=size,
        state_size=hf.get("mamba_d_state"),
        num_groups=hf.get("mamba_n_groups"),
        conv_width=hf.get("mamba_d_conv"),
        norm=norm,
        conv_bias=hf.get("mamba_conv_bias"),
        bias=hf.get("mamba_proj_bias"),
        least_step=least,
        most_step=None if math.isinf(most) else most,
    )


def _number(value: Any) -> float:
    """A JSON number; transformers 5 writes infinity as ``{"__float__": "Infinity"}``."""
    return float(value["__float__"] if isinstance(value, dict) else value)


def _feed_forward(hf: HfConfig) -> FeedForwardSpec:
    shared = hf.get("shared_intermediate_size")
    if not hf.get("num_local_experts"):
        return DenseSpec(shared, read_activation(hf))
    return read_experts(
        hf,
        "num_local_experts",
        "intermediate_size",
        router="softmax_of_chosen",
        shared_size=shared,
    )


def _derive(file: GgufFile, values: Mapping[str, Any]) -> dict[str, Any]:
    count, kv_heads = values["num_hidden_layers"], values["num_key_value_heads"]
    by_layer = kv_heads if isinstance(kv_heads, list) else [kv_heads] * count
    others = sorted({*by_layer} - {0})
    if len(others) > 1:
        raise file.refuse(
            f"granitehybrid.attention.head_count_kv is {by_layer!r:.60}; supported: one number for "
            "layers with attention, 0 for the others"
        )
    turns = file.get("granitehybrid.rope.scaling.finetuned", True)
    return {
        "num_key_value_heads": others[0] if others else None,
        "layer_types": ["attention" if number else "mamba" for number in by_layer],
        "position_embedding_type": "rope" if turns else "nope",
        "attention_multiplier": values.get("attention_multiplier", values["head_dim"] ** -0.5),
        "attention_bias": has_bias(file, "attn_q", count),
        "hidden_act": "silu",
        "shared_intermediate_size": values.get(
            "shared_intermediate_size", values["intermediate_size"]
        ),
        **mamba_values(file, values),
    }


_READS = {
    "expert_count": "num_local_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_shared_feed_forward_length": "shared_intermediate_size",
}
_GGUF = GgufNames(
    "granitehybrid",
    GGUF_DECODER.renamed({**MAMBA_NAMES, **EXPERT_NAMES}),
    paired=PAIRED,
    keys=replace(
        GRANITE_KEYS,
        reads={**GRANITE_KEYS.reads, **_READS},
        derives=_derive,
        by_layer=("num_key_value_heads",),
    ),
    stacked=STACKED_EXPERTS,
    changes=MAMBA_CHANGES,
)

GRANITE_MOE_HYBRID = Family(
    "GraniteMoeHybridForCausalLM",
    "granitemoehybrid",
    _fields,
    HF_DECODER.renamed(_names()),
    fused={_L + "shared_mlp.input_linear": (*_GATE_UP, *_SHARED[0])},
    stacked=GRANITE_EXPERTS,
    also=ROUTERS,
    gguf=_GGUF,
    defaults={
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 1024,
        "mamba_n_heads": 128,
        "mamba_n_groups": 1,
        "mamba_d_state": 256,
        "mamba_d_head": "auto",
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
        "time_step_limit": [0.0, math.inf],
    },
)
