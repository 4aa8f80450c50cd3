"""Gemma 3 (text): Gemma 2 without caps, with norms on query and key heads and a separate rope in
windowed layers."""

from __future__ import annotations

from typing import Any

from checkpoint_converters.families.composite import Composite
from checkpoint_converters.families.family import Family, GgufNames, slides
from checkpoint_converters.families.gemma import gemma_ends
from checkpoint_converters.families.gemma2 import GEMMA_DECODER, sandwiched, scalar_by_depth
from checkpoint_converters.gguf_decoder import GGUF_DECODER
from checkpoint_converters.gguf_keys import GgufKeys
from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.hf_decoder import model_fields, read_window, repeat_layer
from checkpoint_converters.rope import read_ropes_by_kind
from trtspec.config.layer import Layers


def _fields(hf: HfConfig) -> dict[str, Any]:
    layer = sandwiched(hf, None)
    layers = repeat_layer(hf, layer.with_mixer(qk_norm=layer.norm))
    pattern = hf.get("sliding_window_pattern", 6)
    marks = slides(hf, len(layers), lambda i: (i + 1) % pattern != 0)
    window = read_window(hf, hf.get("sliding_window", 4096))
    specs = (
        layer.with_mixer(rope=int(mark), window=window if mark else 0)
        for layer, mark in zip(layers, marks, strict=True)
    )
    ropes = read_ropes_by_kind(hf.values, hf.refuse, 1000000.0, 10000.0)
    return model_fields(hf, Layers.of(specs), ropes=ropes, **gemma_ends(hf))


# What the smaller releases leave out of their text_config.
_DEFAULTS = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
}

_CAP = "final_logit_softcapping"
_KEYS = GgufKeys(
    reads={_CAP: _CAP, "rope.freq_base_swa": "rope_local_base_freq"},
    window_period=6,
    derives=scalar_by_depth(62),
)

GEMMA3 = Family(
    "Gemma3ForCausalLM",
    "gemma3_text",
    _fields,
    GEMMA_DECODER,
    gguf=GgufNames("gemma3", GGUF_DECODER, keys=_KEYS, norms_plus_one=True),
    composites=(Composite("Gemma3ForConditionalGeneration", defaults=_DEFAULTS),),
    defaults={"bos_token_id": 2, "eos_token_id": 1},
)
