"""Qwen3.5 (text, dense): Qwen3-Next's layers with dense feed-forward parts."""

from __future__ import annotations

from typing import Any

from checkpoint_converters.families.composite import Composite, with_plain_ropes
from checkpoint_converters.families.family import Family, GgufNames
from checkpoint_converters.gguf_decoder import GGUF_DECODER
from checkpoint_converters.gguf_delta import DELTA_KEYS, DELTA_NAMES
from checkpoint_converters.gguf_mamba import MAMBA_CHANGES
from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.hf_decoder import HF_DECODER, model_fields
from checkpoint_converters.hf_delta import hf_hybrid, read_hybrid


def _fields(hf: HfConfig) -> dict[str, Any]:
    layers, rope = read_hybrid(with_plain_ropes(hf), default_kv_heads=4)
    return model_fields(hf, layers, ropes=(rope,))


_GGUF = GgufNames(
    "qwen35",
    GGUF_DECODER.renamed(DELTA_NAMES),
    keys=DELTA_KEYS,
    norms_plus_one=True,
    changes=MAMBA_CHANGES,
)

QWEN3_5 = Family(
    "Qwen3_5ForCausalLM",
    "qwen3_5_text",
    _fields,
    hf_hybrid(HF_DECODER),
    gguf=_GGUF,
    composites=(Composite("Qwen3_5ForConditionalGeneration"),),
)
