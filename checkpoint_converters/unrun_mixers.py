"""Mixers that no block implements, by the key of config.json that reveals them.

A checkpoint with one is refused by that key, whatever its architecture: without the mixer, a known
architecture would produce different text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checkpoint_converters.hf_config import HfConfig

_MIXERS = {
    "index_topk": "a sparse-attention indexer (DeepSeek-V3.2)",
    "linear_attn_config": "delta attention (Kimi Linear)",
    "ssm_state_size": "Mamba-2 (Nemotron-H)",
    "attn_type_list": "lightning attention (MiniMax)",
    "sparse_config": "block-sparse attention (MiniCPM)",
    "lru_width": "a gated linear recurrence (RecurrentGemma)",
    "conv_L_cache": "short convolutions (LFM2)",
}


def refuse_unrun_mixers(hf: HfConfig) -> None:
    """Raise CheckpointError if a config, or its text config, has such a key."""
    text = hf.get("text_config", {})
    for values in (hf.values, text if isinstance(text, Mapping) else {}):
        _check(hf, values)


def _check(hf: HfConfig, values: Mapping[str, Any]) -> None:
    for key, mixer in _MIXERS.items():
        if values.get(key):
            raise hf.refuse(
                f"{key} is {values[key]!r:.80}: its layers have {mixer}, which this version does "
                "not run; it runs attention and latent attention"
            )
