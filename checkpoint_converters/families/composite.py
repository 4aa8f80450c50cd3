"""Composite checkpoints: a language model together with vision towers, which are left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from checkpoint_converters.hf_config import HfConfig

_TEXT = "text_config"
_ROPES = ("rope_parameters", "rope_scaling")
# Rows of text have the same position in time, height and width: plain rope.
_MROPE = ("mrope_section", "mrope_interleaved")


@dataclass(frozen=True)
class Composite:
    """A kind of checkpoint that holds a family's model and more. ``architecture``: as spelled in
    config.json. The language model's config is ``text_config``, or config.json itself without one;
    ``defaults``: values of keys that neither has. ``others``: patterns of the names of all other
    tensors."""

    architecture: str
    others: tuple[str, ...] = (r"(model\.)?(vision_tower|multi_modal_projector|visual)\..+",)
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def text_config(self, hf: HfConfig, has_head: bool) -> HfConfig:
        """The language model's config. ``has_head``: whether the folder holds a head. It decides
        whether the head is tied, because the two configs may contradict each other."""
        own = hf.get(_TEXT, {})
        if not isinstance(own, dict):
            raise hf.refuse(f"{_TEXT} is a {type(own).__name__}, not an object")
        own = {key: value for key, value in own.items() if value is not None}
        values = {**self.defaults, **hf.values, **own, "tie_word_embeddings": not has_head}
        return with_plain_ropes(replace(hf, values=values))


def with_plain_ropes(hf: HfConfig) -> HfConfig:
    """A language model's config without its rope settings for images."""
    ropes = {key: hf.get(key) for key in _ROPES}
    plain = {key: _without_mrope(rope) for key, rope in ropes.items() if isinstance(rope, dict)}
    return replace(hf, values={**hf.values, **plain})


def _without_mrope(rope: Mapping[str, Any]) -> dict[str, Any]:
    left = {key: value for key, value in rope.items() if key not in _MROPE}
    for key in ("type", "rope_type"):
        if left.get(key) == "mrope":
            left[key] = "default"
    return left
