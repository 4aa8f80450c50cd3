"""Hugging Face's hybrids of attention and the gated delta rule: shared config keys and tensor
names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate

import torch
from torch import Tensor

from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.hf_decoder import attention_of, read_layer, read_norm
from checkpoint_converters.names import NameMap
from checkpoint_converters.rope import read_rope, read_rotary_dim
from trtspec.config.layer import Layers, LayerSpec
from trtspec.config.mixers.base import MixerSpec
from trtspec.config.mixers.gated_delta import GatedDeltaSpec
from trtspec.config.norm_spec import NormSpec
from trtspec.config.rope import RopeConfig

KINDS = ("full_attention", "linear_attention")
_HEAD_DIM = 256  # transformers' default, whatever hidden_size / num_attention_heads is
_D = "model.layers.{i}.linear_attn."
_OURS = "layers.{i}.attn."
_NAMES = {
    "qkv.weight": "in_proj_qkv.weight",
    "z.weight": "in_proj_z.weight",
    "b.weight": "in_proj_b.weight",
    "a.weight": "in_proj_a.weight",
    "conv.weight": "conv1d.weight",
    "a_log": "A_log",
    "dt_bias": "dt_bias",
    "norm.weight": "norm.weight",
    "out.weight": "out_proj.weight",
}


def hf_hybrid(names: NameMap) -> NameMap:
    """Tensor names of a family's other layers plus those of its delta-rule layers."""
    return names.renamed({_OURS + ours: _D + theirs for ours, theirs in _NAMES.items()})


def read_hybrid(
    hf: HfConfig, default_kv_heads: int, tiles: bool = True
) -> tuple[Layers, RopeConfig]:
    """The layers, all dense, and the rope table of those with attention. ``tiles``: the family's
    GGUF files tile value heads, see `gguf_delta`.

    Raises CheckpointError for unsupported layer kinds and activations, ConfigError for impossible
    values.
    """
    norm = NormSpec(read_norm(hf).eps, one_plus=True)
    bias = hf.get("attention_bias", False)
    layer = read_layer(hf, default_kv_heads, _HEAD_DIM, norm=norm)
    if hf.get("hidden_act", "silu") not in ("silu", "swish"):
        raise hf.refuse(f"hidden_act {hf.get('hidden_act')!r} is not supported; supported: silu")
    attention = layer.with_mixer(
        gated=True,
        qk_norm=norm,
        bias=bias,
        output_bias=bias,
        rotary_dim=read_rotary_dim(hf.values, attention_of(layer).head_dim, 0.25, hf.refuse),
    )
    delta = LayerSpec(_delta_of(hf, tiles and hf.is_gguf), layer.ffn, norm)
    rope = read_rope(hf.values, hf.refuse, partial=True)
    return Layers.of(delta if mark else attention for mark in _marks(hf)), rope


def _delta_of(hf: HfConfig, tiled: bool) -> GatedDeltaSpec:
    return GatedDeltaSpec(
        num_key_heads=hf.get("linear_num_key_heads", 16),
        num_value_heads=hf.get("linear_num_value_heads", 32),
        key_dim=hf.get("linear_key_head_dim", 128),
        value_dim=hf.get("linear_value_head_dim", 128),
        conv_width=hf.get("linear_conv_kernel_dim", 4),
        norm=read_norm(hf),
        tiled=tiled,
    )


def _marks(hf: HfConfig) -> list[bool]:
    """Which layers have the delta rule: by ``layer_types``, or all but every
    ``full_attention_interval``-th."""
    count, kinds = hf.require("num_hidden_layers"), hf.get("layer_types")
    if kinds is None:
        interval = hf.get("full_attention_interval", 4)
        if type(interval) is not int or interval < 1:
            raise hf.refuse(f"full_attention_interval is {interval!r}; it must be at least 1")
        return [(layer + 1) % interval != 0 for layer in range(count)]
    listed = kinds if isinstance(kinds, list) else [kinds]
    other = sorted({str(kind) for kind in listed} - set(KINDS))
    if other:
        raise hf.refuse(
            f"layer_types {', '.join(other)} are not supported; supported: {', '.join(KINDS)}"
        )
    if len(listed) != count:
        raise hf.refuse(f"layer_types names {len(listed)} layers, the model has {count}")
    return [kind == KINDS[1] for kind in listed]


def _rows_by_group(groups: int, *sizes: int) -> list[Tensor]:
    """The rows of each part in a matrix that stores so many of each, group by group."""
    whole = torch.arange(groups * sum(sizes)).view(groups, -1)
    ends = [*accumulate(sizes)]
    return [whole[:, end - size : end].flatten() for end, size in zip(ends, sizes, strict=True)]


def _qkvz_rows(mixer: MixerSpec) -> dict[str, Tensor]:
    spec = GatedDeltaSpec.of(mixer)
    shared = spec.values // spec.num_key_heads
    sizes = spec.key_dim, spec.key_dim, shared, shared
    *qkv, z = _rows_by_group(spec.num_key_heads, *sizes)
    return {"attn.qkv": torch.cat(qkv), "attn.z": z}


def ba_rows(mixer: MixerSpec) -> dict[str, Tensor]:
    """See `Family.mixed`: both gates of the value heads, grouped by key head."""
    spec = GatedDeltaSpec.of(mixer)
    shared = spec.num_value_heads // spec.num_key_heads
    b, a = _rows_by_group(spec.num_key_heads, shared, shared)
    return {"attn.b": b, "attn.a": a}


BY_KEY_HEAD: Mapping[str, Callable[[MixerSpec], Mapping[str, Tensor]]] = {
    _D + "in_proj_qkvz": _qkvz_rows,
    _D + "in_proj_ba": ba_rows,
}
"""Tensors whose rows are grouped by key head; see `Family.mixed`."""
