"""Gemma 4 (text): layers that share K and V, keys used as values, per-layer embeddings, larger
heads in layers without a window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from checkpoint_converters.containers.gguf_file import GgufFile
from checkpoint_converters.families.composite import Composite
from checkpoint_converters.families.family import Family, GgufNames, slides
from checkpoint_converters.families.gemma2 import GEMMA_DECODER
from checkpoint_converters.gguf_config import ARCHITECTURE
from checkpoint_converters.gguf_decoder import GGUF_DECODER
from checkpoint_converters.gguf_keys import GgufKeys
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
_ROPES = {
    "full_attention": {
        "rope_type": "proportional",
        "partial_rotary_factor": 0.25,
        "rope_theta": 1000000.0,
    },
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}

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
    """The layers, without shared K and V and per-layer embeddings."""
    # vision: of images' tokens alone.
    for key, known in (
        ("use_bidirectional_attention", (None, False, "vision")),
        ("enable_moe_block", (None, False)),
    ):
        if hf.get(key) not in known:
            value = str(hf.get(key)).replace("True", "true")
            raise hf.refuse(f"{key} {value!r} is not supported")
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
    told = hf.get("per_layer_config", {})
    whole = {str(i) for i, mark in enumerate(marks) if not mark}
    if not isinstance(told, Mapping) or set(told) - whole:
        raise hf.refuse(
            f"per_layer_config is {told!r:.80}; supported: an object for layers without a window "
            f"({', '.join(sorted(whole, key=int))})"
        )
    return tuple(
        sliding if mark else layer.with_mixer(rope=0, **_global(hf, i))
        for i, mark in enumerate(marks)
    )


def _global(hf: HfConfig, layer: int) -> dict[str, Any]:
    """The heads of a layer without a window. transformers 5 gives them per layer, other files once
    for all such layers."""
    same_values = hf.get("attention_k_eq_v", False)
    told = hf.get("per_layer_config")
    if told is not None:
        own = told.get(str(layer), {})
        unknown = sorted(set(own) - {"head_dim", "num_key_value_heads"})
        if unknown:
            raise hf.refuse(
                f"per_layer_config of layer {layer} has unknown keys {', '.join(unknown)}"
            )
        size, heads = own.get("head_dim"), own.get("num_key_value_heads")
    else:
        size = hf.get("global_head_dim", 512)
        heads = hf.get("num_global_key_value_heads") if same_values else None
    given = {"head_dim": size, "num_kv_heads": heads}
    return {"values_are_keys": same_values, **{k: v for k, v in given.items() if v is not None}}


def _shared(hf: HfConfig, layers: tuple[LayerSpec, ...]) -> tuple[LayerSpec, ...]:
    """The last layers read K and V of the last earlier layer of their kind."""
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
        activation = read_activation(hf, "hidden_activation", "gelu_pytorch_tanh")
        layers = tuple(layer.with_per_layer(size, activation) for layer in layers)
        given = PerLayerSpec(
            size,
            layers[0].norm,
            size**0.5,
            hidden**-0.5,
            2**-0.5,
            rows=None if rows == vocab else rows,
        )
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


_IN_GGUF = GGUF_DECODER.renamed(
    {
        "layers.{i}.output_scale": "blk.{i}.layer_output_scale.weight",
        "layers.{i}.per_layer.gate.weight": "blk.{i}.inp_gate.weight",
        "layers.{i}.per_layer.out.weight": "blk.{i}.proj.weight",
        "layers.{i}.per_layer.norm.weight": "blk.{i}.post_norm.weight",
        "per_layer.embed.weight": "per_layer_token_embd.weight",
        "per_layer.projection.weight": "per_layer_model_proj.weight",
        "per_layer.norm.weight": "per_layer_proj_norm.weight",
    }
).ignoring(r"blk\.\d+\.attn_(k|v|k_norm)\.weight")


def _said_in_gguf(file: GgufFile, values: Mapping[str, Any]) -> dict[str, Any]:
    """What the files give per layer (heads, wide MLPs) and per kind (ropes and head sizes; keys
    without ``_swa`` are for layers without a window)."""

    def key(name: str) -> str:
        return f"{file.text(ARCHITECTURE)}.{name}"

    kinds, size = values["layer_types"], file.integer(key("attention.key_length_swa"))
    for name in ("attention.value_length_swa", "rope.dimension_count_swa"):
        other = file.integer(key(name), size)
        if other != size:
            raise file.refuse(f"{key(name)} is {other}, heads have {size}; supported: the same")
    heads = _of_kinds(file, key("attention.head_count_kv"), values["num_key_value_heads"], kinds)
    shared = file.integer(key("attention.shared_kv_layers"), 0)
    parts = ["own"] * (len(kinds) - shared) + ["shared"] * shared
    inner = _of_kinds(file, key("feed_forward_length"), values["intermediate_size"], parts)
    narrow = inner.get("own", 0)
    wide = inner.get("shared", narrow)
    if wide not in (narrow, 2 * narrow):
        raise file.refuse(
            f"{key('feed_forward_length')} is {wide} in layers that share K and V, {narrow} in "
            "others; supported: the same, or twice as much"
        )
    full = kinds.index("full_attention") if "full_attention" in kinds else None
    keys_alone = full is not None and f"blk.{full}.attn_v.weight" not in file.tensors
    theta = file.number(key("rope.freq_base_swa"), 10000.0)
    return {
        "intermediate_size": narrow,
        "use_double_wide_mlp": wide != narrow,
        "num_kv_shared_layers": shared,
        "num_key_value_heads": heads.get("sliding_attention", 1),
        "num_global_key_value_heads": heads.get("full_attention"),
        "attention_k_eq_v": keys_alone,
        "head_dim": size,
        "global_head_dim": values["head_dim"],
        "hidden_size_per_layer_input": file.integer(key("embedding_length_per_layer_input"), 0),
        "vocab_size_per_layer_input": _rows(file, values["vocab_size"]),
        "rope_parameters": {
            "full_attention": values["rope_parameters"],
            "sliding_attention": {"rope_type": "default", "rope_theta": theta},
        },
    }


def _rows(file: GgufFile, vocab: int) -> int:
    """The number of tokens with per-layer embeddings."""
    table = file.tensors.get(_IN_GGUF.names["per_layer.embed.weight"])
    return vocab if table is None else table.shape[0]


def _of_kinds(file: GgufFile, key: str, said: Any, kinds: Sequence[str]) -> dict[str, int]:
    """The number for each kind of layer; CheckpointError if layers of one kind differ."""
    numbers = said if isinstance(said, list) else [said] * len(kinds)
    found: dict[str, int] = {}
    for number, kind in zip(numbers, kinds, strict=True):
        if found.setdefault(kind, number) != number:
            raise file.refuse(
                f"{key} is {said!r:.60}; supported: one number for each kind of layer"
            )
    return found


_KEYS = GgufKeys(
    reads={"final_logit_softcapping": "final_logit_softcapping"},
    window_period=6,
    marks_turning=True,
    by_layer=("intermediate_size", "num_key_value_heads"),
    derives=_said_in_gguf,
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
    gguf=GgufNames("gemma4", _IN_GGUF, keys=_KEYS),
    defaults={"bos_token_id": 2, "eos_token_id": 1, "rope_parameters": _ROPES},
)
