"""OLMo 3: OLMo 2 with a window, and an unscaled rope, on three of four layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from checkpoint_converters.families.family import Family, slides
from checkpoint_converters.families.olmo2 import IN_GGUF, OLMO_DECODER, olmo_layer
from checkpoint_converters.gguf_keys import WINDOW, GgufKeys
from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.hf_decoder import model_fields, read_window, repeat_layer
from checkpoint_converters.rope import read_ropes_by_kind
from trtspec.config.layer import Layers


def _fields(hf: HfConfig) -> dict[str, Any]:
    layers = repeat_layer(hf, olmo_layer(hf))
    marks = slides(hf, len(layers), lambda i: (i + 1) % 4 != 0)
    window = read_window(hf, hf.get("sliding_window", 4096))
    specs = (
        layer.with_mixer(rope=int(mark), window=window if mark else 0)
        for layer, mark in zip(layers, marks, strict=True)
    )
    ropes = read_ropes_by_kind(hf.values, hf.refuse, 500000.0)
    return model_fields(hf, Layers.of(specs), ropes=ropes)


_IN_GGUF = replace(IN_GGUF, sign=WINDOW, keys=GgufKeys(window_period=4))

OLMO3 = Family(
    "Olmo3ForCausalLM",
    "olmo3",
    _fields,
    OLMO_DECODER,
    gguf=_IN_GGUF,
    defaults={"eos_token_id": 50279},
)
