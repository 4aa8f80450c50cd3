"""Widener: how the checkpoints of a draft network grow with their target."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Widener:
    """For cost fixtures (`trtspec.bench.fixture`) of a network of one layer, as wide as its target.

    runs: what it widens, for lists. recognises: whether a checkpoint is one, by the names of its
    tensors. widen: lists the wider tensors in a ``trtspec.bench.widen_decoder.Widening``. config:
    the keys of its config.json that change beside the sizes of its layers, from that, the number of
    layers of the target as it was, and where a layer of that is now.
    """

    runs: str
    recognises: Callable[[Collection[str]], bool]
    widen: Callable[[Any], None]
    config: Callable[[Any, int, Callable[[int], int]], dict[str, Any]]
