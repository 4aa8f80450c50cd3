"""gpt-oss: sinks, a window on every other layer, biases, and experts with a clamped SwiGLU."""

from __future__ import annotations

from typing import Any

from checkpoint_converters.families.family import Family, slides
from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.hf_decoder import (
    HF_DECODER,
    model_fields,
    read_layer,
    read_norm,
    read_window,
    repeat_layer,
    with_windows,
)
from checkpoint_converters.hf_experts import PROJECTIONS, expert_names, read_experts, with_experts
from checkpoint_converters.stacked import Stacked

_M = "model.layers.{i}.mlp."
_OURS = "layers.{i}.mlp."
_NAMES = HF_DECODER.renamed(
    {
        **expert_names(_M + "router.weight", PROJECTIONS),
        _OURS + "router.scores.bias": _M + "router.bias",
        **{
            f"{_OURS}experts.{{e}}.{part}.bias": f"{_M}experts.{{e}}.{part}_proj.bias"
            for part in ("gate", "up", "down")
        },
        "layers.{i}.attn.sinks": "model.layers.{i}.self_attn.sinks",
    }
)
_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 150000.0,
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
_ALPHA = 1.702  # of the experts' activation, by which they were trained


def _fields(hf: HfConfig) -> dict[str, Any]:
    alpha = hf.get("swiglu_alpha", _ALPHA)
    if alpha != _ALPHA:
        raise hf.refuse(f"swiglu_alpha is {alpha!r}; supported: {_ALPHA}")
    bias = hf.get("attention_bias", True)
    layer = read_layer(hf, default_kv_heads=8, head_dim=64, norm=read_norm(hf, 1e-5))
    layers = repeat_layer(hf, layer.with_mixer(bias=bias, output_bias=bias, sinks=True))
    window = read_window(hf, hf.get("sliding_window", 128))
    marks = slides(hf, len(layers), lambda layer: layer % 2 == 0)
    experts = read_experts(
        hf,
        "num_local_experts",
        "intermediate_size",
        router="softmax_of_chosen",
        router_bias=True,
        bias=True,
        activation="quick_gelu",
        limit=float(hf.get("swiglu_limit", 7.0)),
        up_offset=1.0,
    )
    layers = with_windows(layers, (window if mark else 0 for mark in marks))
    return model_fields(hf, with_experts(layers, experts, [True] * len(layers)))


GPT_OSS = Family(
    "GptOssForCausalLM",
    "gpt_oss",
    _fields,
    _NAMES,
    stacked={
        _M + "experts.gate_up_proj": Stacked(("gate", "up"), transposed=True, alternating=True),
        _M + "experts.gate_up_proj_bias": Stacked(("gate", "up"), "bias", alternating=True),
        _M + "experts.down_proj": Stacked(("down",), transposed=True),
        _M + "experts.down_proj_bias": Stacked(("down",), "bias"),
    },
    defaults={"rope_parameters": _ROPE, "rope_theta": _ROPE["rope_theta"]},
)
