"""Which of several settings a layer has, by the targets that a config lists for each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")

LINEAR, EMBEDDING = "Linear", "Embedding"
"""Targets may be module classes; those of embeddings are called ``...Embedding``."""
_PATTERN = "re:"


def setting_of(layer: str, by_target: Mapping[str, T]) -> T | None:
    """The setting of a layer, by its name in the file. Exact names precede patterns, and patterns
    precede classes. An embedding without a listed class of its own has the setting of linear
    layers."""
    for target in sorted(by_target, key=lambda each: (each.startswith(_PATTERN), each)):
        pattern = target.removeprefix(_PATTERN)
        if target == layer or (pattern != target and re.match(pattern, layer)):
            return by_target[target]
    if _is_embedding(layer):
        for target in by_target:
            if target.endswith(EMBEDDING) and not target.startswith(_PATTERN):
                return by_target[target]
    return by_target.get(LINEAR)


def _is_embedding(layer: str) -> bool:
    own = layer.rpartition(".")[2]
    return "embed" in own or own == "wte"
