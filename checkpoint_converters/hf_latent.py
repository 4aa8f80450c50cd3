"""Multi-head latent attention in Hugging Face's spelling: the keys of config.json."""

from __future__ import annotations

import math
from collections.abc import Callable

from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.hf_decoder import read_activation, read_norm, repeat_layer
from checkpoint_converters.hf_experts import with_experts
from trtspec.config.feed_forwards.dense import DenseSpec
from trtspec.config.feed_forwards.experts import ExpertsSpec
from trtspec.config.layer import Layers, LayerSpec
from trtspec.config.mixers.latent_attention import LatentAttentionSpec
from trtspec.config.norm_spec import NormSpec
from trtspec.config.rope import RopeConfig

_LATENT_NORM = NormSpec(1e-6)  # of the latents, whatever rms_norm_eps says


def read_latent_attention(
    hf: HfConfig, rope: RopeConfig, interleaved: bool = True
) -> LatentAttentionSpec:
    """The mixer of such a layer; absent keys have DeepSeek's values. With a null ``q_lora_rank``,
    queries are projected from the hidden state itself.

    yarn's ``mscale_all_dim`` sharpens the softmax: scores are multiplied by the square of ``0.1 *
    mscale_all_dim * ln(factor) + 1``.
    """
    plain, turned = hf.get("qk_nope_head_dim", 128), hf.get("qk_rope_head_dim", 64)
    bias = hf.get("attention_bias", False)
    sharpness = 1.0
    if rope.type != "default" and rope.mscale_all_dim and rope.factor > 1:
        sharpness = (0.1 * rope.mscale_all_dim * math.log(rope.factor) + 1) ** 2
    return LatentAttentionSpec(
        num_heads=hf.require("num_attention_heads"),
        kv_rank=hf.get("kv_lora_rank", 512),
        plain_dim=plain,
        rope_dim=turned,
        value_dim=hf.get("v_head_dim", 128),
        norm=_LATENT_NORM,
        q_rank=hf.values.get("q_lora_rank", 1536),
        interleaved=interleaved,
        scale=(plain + turned) ** -0.5 * sharpness,
        bias=bias,
        output_bias=bias,
    )


def latent_layers(
    hf: HfConfig,
    mixer: LatentAttentionSpec,
    first: int,
    read_experts: Callable[[HfConfig], ExpertsSpec],
) -> Layers:
    """Layers with this mixer: dense ones, then from number ``first`` on ones with a mixture of
    experts."""
    dense = DenseSpec(
        hf.require("intermediate_size"), read_activation(hf), bias=hf.get("mlp_bias", False)
    )
    layers = repeat_layer(hf, LayerSpec(mixer, dense, read_norm(hf)))
    if first >= len(layers):
        return layers
    marks = [index >= first for index in range(len(layers))]
    return with_experts(layers, read_experts(hf), marks)
