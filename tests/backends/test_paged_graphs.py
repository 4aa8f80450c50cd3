"""Graphs over packed rows whose attention is a plugin: when they are made, and what of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from trtspec.backends.parts import MaskKind, Part, PartRole
from trtspec.backends.slots.backend import SlotParts
from trtspec.backends.tensorrt.backend import TensorRTBackend
from trtspec.backends.tensorrt.options import TensorRTConfig
from trtspec.backends.tensorrt.paged import lower_paged
from trtspec.backends.tensorrt.paged_session import PagedParts
from trtspec.config.kv import CacheLayout
from trtspec.config.mixers.latent_attention import LatentAttentionSpec
from trtspec.errors import ConfigError

from ..config.test_build import MODEL
from ..tiny_config import attention_of

SPEC = attention_of(MODEL)


@pytest.mark.parametrize("paged", [True, False])
def test_the_option_decides_where_sequences_lie(paged: bool) -> None:
    backend: Any = TensorRTBackend()
    assert backend.has_slots(TensorRTConfig(paged_attention=paged)) is not paged
    engine = SimpleNamespace(layout=CacheLayout(16, 4, 1, is_slots=not paged))
    assert backend.parts_class(engine) is (PagedParts if paged else SlotParts)


def part(mixer: Any, **changes: Any) -> Part:
    specs = [SimpleNamespace(mixer=each, ffn=None) for each in (SPEC, mixer)]
    decoder: Any = SimpleNamespace(layers=SimpleNamespace(specs=specs))
    return Part(PartRole.PASS, "pass", decoder, **changes)


@pytest.mark.parametrize(
    ("mixer", "changes", "words"),
    [
        (object.__new__(LatentAttentionSpec), {}, "latent attention"),
        (replace(SPEC, sinks=True), {}, "attention sinks"),
        (replace(SPEC, kv_from=0), {}, "layers that read K and V of an earlier one"),
        (replace(SPEC, head_dim=320), {}, r"heads of 320 elements \(up to 256\)"),
        (SPEC, {"masks": (MaskKind(), MaskKind(0, True))}, "blocks in which no row sees a later"),
    ],
)
def test_what_the_plugin_does_not_compute(
    mixer: Any, changes: Mapping[str, Any], words: str
) -> None:
    network: Any = SimpleNamespace(folder="draft", make=None)
    said = f"the draft has {words}.*, which the plugin .* build without --paged_attention"
    with pytest.raises(ConfigError, match=said):
        lower_paged(SimpleNamespace(), network, part(mixer, **changes))  # type: ignore[arg-type]
