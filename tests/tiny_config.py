"""ModelConfigs of equal layers for tests, by the keys that flat configs have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trtspec.config.embedding_spec import HeadSpec
from trtspec.config.feed_forwards.dense import DenseSpec
from trtspec.config.layer import Layers, LayerSpec
from trtspec.config.mixers.attention import AttentionSpec
from trtspec.config.model import ModelConfig
from trtspec.config.norm_spec import NormSpec
from trtspec.config.rope import RopeConfig


def tiny_config(
    architecture: str,
    vocab_size: int,
    hidden_size: int,
    intermediate_size: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    eps: float,
    max_position_embeddings: int,
    **flags: Any,
) -> ModelConfig:
    """``flags``: see `changed`."""
    mixer, norm = AttentionSpec(num_heads, num_kv_heads, head_dim), NormSpec(eps)
    layers = Layers.repeat(LayerSpec(mixer, DenseSpec(intermediate_size), norm), num_layers)
    plain = ModelConfig(
        architecture, vocab_size, hidden_size, layers, norm, max_position_embeddings
    )
    return changed(plain, **flags)


def changed(
    config: ModelConfig,
    *,
    num_layers: int | None = None,
    windows: int | tuple[int, ...] | None = None,
    qk_norm: bool | None = None,
    bias: bool = False,
    head_dim: int | None = None,
    tied: bool | None = None,
    theta: float | None = None,
    **fields: Any,
) -> ModelConfig:
    """``num_layers``: layers like the first one. ``windows``: of all layers, or of each. ``bias``:
    all that attention and MLP can have. ``fields``: others of ModelConfig."""
    specs = list(config.layers)
    if num_layers is not None:
        specs = [specs[0]] * num_layers
    if qk_norm is not None:
        specs = [spec.with_mixer(qk_norm=spec.norm if qk_norm else None) for spec in specs]
    if bias:
        specs = [spec.with_mixer(bias=True, output_bias=True) for spec in specs]
        specs = [spec.with_ffn(bias=True) for spec in specs]
    if head_dim is not None:
        specs = [spec.with_mixer(head_dim=head_dim) for spec in specs]
    if windows is not None:
        each = windows if isinstance(windows, tuple) else (windows,) * len(specs)
        pairs = zip(specs, each, strict=True)
        specs = [spec.with_mixer(window=window) for spec, window in pairs]
    if tied is not None:
        fields["head"] = HeadSpec(tied)
    if theta is not None:
        fields["ropes"] = (RopeConfig(theta),)
    return replace(config, layers=Layers.of(specs), **fields)


def attention_of(config: ModelConfig, layer: int = 0) -> AttentionSpec:
    mixer = config.layers[layer].mixer
    assert isinstance(mixer, AttentionSpec)
    return mixer


def dense_of(config: ModelConfig, layer: int = 0) -> DenseSpec:
    ffn = config.layers[layer].ffn
    assert isinstance(ffn, DenseSpec)
    return ffn
