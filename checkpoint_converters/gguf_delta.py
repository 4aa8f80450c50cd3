"""llama.cpp's tensor names for the gated delta rule, and the keys of its hybrids.

Files of Qwen3.5 tile the value heads: head h uses q and k of key head h % key heads. Files of
Qwen3-Next have the same order as other checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from checkpoint_converters.containers.gguf_file import GgufFile
from checkpoint_converters.gguf_config import ARCHITECTURE
from checkpoint_converters.gguf_experts import EXPERT_READS
from checkpoint_converters.gguf_keys import GgufKeys
from checkpoint_converters.hf_delta import KINDS, ba_rows

_B = "blk.{i}."
_A = "layers.{i}.attn."

DELTA_NAMES = {
    _A + "qkv.weight": _B + "attn_qkv.weight",
    _A + "z.weight": _B + "attn_gate.weight",
    _A + "b.weight": _B + "ssm_beta.weight",
    _A + "a.weight": _B + "ssm_alpha.weight",
    _A + "conv.weight": _B + "ssm_conv1d.weight",
    _A + "a_log": _B + "ssm_a",
    _A + "dt_bias": _B + "ssm_dt.bias",
    _A + "norm.weight": _B + "ssm_norm.weight",
    _A + "out.weight": _B + "ssm_out.weight",
    # Before the feed-forward part, whatever it is called.
    "layers.{i}.post_attention_norm.weight": _B + "post_attention_norm.weight",
}

MIXED_GATES = {_B + "ssm_ba": ba_rows}
"""See `Family.mixed`: Qwen3-Next's files hold both gates in one matrix."""


def delta_values(file: GgufFile, values: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json values of the delta rule, and which layers have it.

    Raises:
        CheckpointError: a key is missing or has a value of the wrong type.
    """
    architecture = values[ARCHITECTURE]

    def size(name: str) -> int:
        found: int = file.integer(f"{architecture}.ssm.{name}")
        return found

    heads, interval = size("time_step_rank"), f"{architecture}.full_attention_interval"
    every = file.integer(interval, 4)
    if every < 1:
        raise file.refuse(f"{interval} is {every}; it must be at least 1")
    layers = range(1, values["num_hidden_layers"] + 1)
    return {
        "linear_num_key_heads": size("group_count"),
        "linear_num_value_heads": heads,
        "linear_key_head_dim": size("state_size"),
        "linear_value_head_dim": size("inner_size") // max(heads, 1),
        "linear_conv_kernel_dim": size("conv_kernel"),
        "layer_types": [KINDS[layer % every != 0] for layer in layers],
    }


DELTA_KEYS = GgufKeys(
    partial_rotation=True, of_images=("rope.dimension_sections",), derives=delta_values
)
EXPERT_DELTA_KEYS = replace(
    DELTA_KEYS,
    reads=EXPERT_READS,
    instead={"feed_forward_length": "expert_feed_forward_length"},  # no layer is dense
)
"""Keys of hybrids with experts."""
