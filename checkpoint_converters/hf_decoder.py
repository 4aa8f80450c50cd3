"""Hugging Face's Llama-like decoders: shared config keys and tensor names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from checkpoint_converters.hf_config import HfConfig, read_eos
from checkpoint_converters.names import NameMap
from checkpoint_converters.rope import read_length, read_rope
from trtspec.config.embedding_spec import HeadSpec
from trtspec.config.feed_forwards.dense import DenseSpec
from trtspec.config.layer import Layers, LayerSpec
from trtspec.config.mixers.attention import AttentionSpec
from trtspec.config.norm_spec import NormSpec

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}
"""`DenseSpec`'s names for transformers' activations."""

_L = "model.layers.{i}."
_A = _L + "self_attn."
_M = _L + "mlp."

HF_DECODER = NameMap(
    {
        "embed.weight": EMBEDDING,
        "layers.{i}.input_norm.weight": _L + "input_layernorm.weight",
        "layers.{i}.attn.q.weight": _A + "q_proj.weight",
        "layers.{i}.attn.q.bias": _A + "q_proj.bias",
        "layers.{i}.attn.k.weight": _A + "k_proj.weight",
        "layers.{i}.attn.k.bias": _A + "k_proj.bias",
        "layers.{i}.attn.v.weight": _A + "v_proj.weight",
        "layers.{i}.attn.v.bias": _A + "v_proj.bias",
        "layers.{i}.attn.o.weight": _A + "o_proj.weight",
        "layers.{i}.attn.o.bias": _A + "o_proj.bias",
        "layers.{i}.attn.q_a.weight": _A + "q_a_proj.weight",
        "layers.{i}.attn.q_a.bias": _A + "q_a_proj.bias",
        "layers.{i}.attn.q_a_norm.weight": _A + "q_a_layernorm.weight",
        "layers.{i}.attn.q_b.weight": _A + "q_b_proj.weight",
        "layers.{i}.attn.kv_a.weight": _A + "kv_a_proj_with_mqa.weight",
        "layers.{i}.attn.kv_a.bias": _A + "kv_a_proj_with_mqa.bias",
        "layers.{i}.attn.kv_a_norm.weight": _A + "kv_a_layernorm.weight",
        "layers.{i}.attn.kv_b.weight": _A + "kv_b_proj.weight",
        "layers.{i}.attn.q_norm.weight": _A + "q_norm.weight",
        "layers.{i}.attn.k_norm.weight": _A + "k_norm.weight",
        "layers.{i}.post_attention_norm.weight": _L + "post_attention_layernorm.weight",
        "layers.{i}.mlp.gate.weight": _M + "gate_proj.weight",
        "layers.{i}.mlp.gate.bias": _M + "gate_proj.bias",
        "layers.{i}.mlp.up.weight": _M + "up_proj.weight",
        "layers.{i}.mlp.up.bias": _M + "up_proj.bias",
        "layers.{i}.mlp.down.weight": _M + "down_proj.weight",
        "layers.{i}.mlp.down.bias": _M + "down_proj.bias",
        "norm.weight": "model.norm.weight",
        "head.weight": HEAD,
    },
    # Old checkpoints saved the rotary frequencies, which the config determines.
    ignored=(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",),
)


def read_layer(
    hf: HfConfig,
    default_kv_heads: int | None,
    head_dim: int | None = None,
    activation: str | None = None,
    norm: NormSpec | None = None,
) -> LayerSpec:
    """The layer common to all families here: no biases, windows or head norms.

    ``default_kv_heads`` replaces an absent num_key_value_heads (None: as many as heads);
    ``head_dim`` an absent head_dim (None: hidden_size / heads). ``activation``, ``norm``: None
    means hidden_act and rms_norm_eps. Raises CheckpointError for another activation, ConfigError
    for impossible values.
    """
    heads = hf.require("num_attention_heads")
    given = hf.get("head_dim", head_dim)
    mixer = AttentionSpec(
        num_heads=heads,
        num_kv_heads=hf.get("num_key_value_heads", default_kv_heads or heads),
        head_dim=_head_dim(hf, heads) if given is None else given,
    )
    ffn = DenseSpec(hf.require("intermediate_size"), activation or read_activation(hf))
    return LayerSpec(mixer, ffn, norm or read_norm(hf))


def read_activation(hf: HfConfig, key: str = "hidden_act", default: str = "silu") -> str:
    """The activation under a key, in `DenseSpec`'s spelling; CheckpointError for an unknown one."""
    name = hf.get(key, default)
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise hf.refuse(f"{key} {name!r} is not supported; supported: {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def attention_of(layer: LayerSpec) -> AttentionSpec:
    """The mixer of such a layer."""
    return AttentionSpec.of(layer.mixer)


def repeat_layer(hf: HfConfig, layer: LayerSpec) -> Layers:
    """The layer, repeated as often as config.json says; ConfigError unless that is an integer from
    1 on."""
    return Layers.repeat(layer, hf.require("num_hidden_layers"))


def with_windows(layers: Layers, windows: Iterable[int]) -> Layers:
    """The same layers with these sliding windows, in tokens; 0: none."""
    pairs = zip(layers, windows, strict=True)
    return Layers.of(layer.with_mixer(window=window) for layer, window in pairs)


def read_window(hf: HfConfig, value: Any) -> int:
    """`AttentionSpec`'s sliding window for config.json's value; null means none."""
    if type(value) is int and value < 1:
        raise hf.refuse(f"sliding_window is {value}; it must be at least 1")
    window: int = 0 if value is None else value
    return window


def model_fields(hf: HfConfig, layers: Layers, **fields: Any) -> dict[str, Any]:
    """Fields of ModelConfig except ``architecture``, ``dtype`` and ``storage``; ``fields``
    override.

    Raises CheckpointError for unsupported rope types, ConfigError for impossible values.
    """
    length = hf.require("max_position_embeddings")
    ropes = fields["ropes"] if "ropes" in fields else (read_rope(hf.values, hf.refuse),)
    return {
        "vocab_size": hf.require("vocab_size"),
        "hidden_size": hf.require("hidden_size"),
        "layers": layers,
        "norm": layers[0].norm,
        "max_position_embeddings": read_length(hf.values, ropes, length),
        "ropes": ropes,
        "head": HeadSpec(tied=hf.get("tie_word_embeddings", False)),
        "bos_token_id": hf.get("bos_token_id", hf.generation.get("bos_token_id")),
        "eos_token_ids": read_eos(hf),
        **fields,
    }


def read_norm(hf: HfConfig, default: float = 1e-6) -> NormSpec:
    """The RMS norm used throughout."""
    return NormSpec(hf.get("rms_norm_eps", default))


def _head_dim(hf: HfConfig, heads: Any) -> int:
    hidden = hf.require("hidden_size")
    if not (isinstance(heads, int) and isinstance(hidden, int) and heads > 0):
        raise hf.refuse(f"hidden_size {hidden!r} and num_attention_heads {heads!r} do not fit")
    if hidden % heads:
        raise hf.refuse(
            f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}, "
            "and head_dim is not given"
        )
    return hidden // heads
