"""GgufKeys: what a family's GGUF files say beyond the keys common to all families."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from checkpoint_converters.containers.gguf_file import GgufFile

WINDOW = "attention.sliding_window"
WINDOW_PATTERN = "attention.sliding_window_pattern"

RMS_EPSILON = ("attention.layer_norm_rms_epsilon", "rms_norm_eps")


@dataclass(frozen=True)
class GgufKeys:
    """GGUF keys are given without the architecture prefix; config.json keys are transformers'.

    epsilon: the key of the norms' epsilon, and config.json's. reads: config.json key by GGUF key
    for numbers that are copied; as in llama.cpp, zero means unset. window_period: the last of every
    so many layers has no window, if the file gives a window without saying which layers have it; 0:
    the family has no windows. default_window: if the file gives none. longrope: whether it may hold
    two tensors of factors. marks_turning: whether its tensor of factors says which part of a head
    rotates. by_layer: config.json keys whose value may be a list with one number per layer, for
    ``derives`` to read. of_images: GGUF keys that do not affect text. instead: GGUF keys that may
    replace others if these are missing. derives: computes further config.json values from the file
    and the values read so far.
    """

    epsilon: tuple[str, str] = RMS_EPSILON
    reads: Mapping[str, str] = field(default_factory=dict)
    window_period: int = 0
    default_window: int = 0
    partial_rotation: bool = False
    longrope: bool = False
    marks_turning: bool = False
    by_layer: tuple[str, ...] = ()
    of_images: tuple[str, ...] = ()
    instead: Mapping[str, str] = field(default_factory=dict)
    derives: Callable[[GgufFile, Mapping[str, Any]], dict[str, Any]] | None = None

    @property
    def taken(self) -> set[str]:
        """GGUF keys that may have any value."""
        scale = {"rope.scaling.attn_factor"} if self.longrope else set()
        return {*self.reads, *self.of_images, *scale, *({WINDOW} if self.window_period else ())}


def layer_windows(file: GgufFile, architecture: str, keys: GgufKeys, layers: int) -> dict[str, Any]:
    """``sliding_window`` and ``layer_types`` of config.json; nothing for a family without windows.

    Raises:
        CheckpointError: a pattern that is neither a number nor a list with a mark for each layer.
    """
    if not keys.window_period:
        return {}
    window = file.integer(f"{architecture}.{WINDOW}", keys.default_window)
    key = f"{architecture}.{WINDOW_PATTERN}"
    pattern = file.get(key, keys.window_period)
    if window == 0:
        marks = [False] * layers
    elif isinstance(pattern, list) and len(pattern) == layers:
        marks = [bool(mark) for mark in pattern]
    elif type(pattern) is int and pattern >= 0:
        marks = [pattern == 0 or i % pattern < pattern - 1 for i in range(layers)]
    else:
        raise file.refuse(
            f"{key} is {pattern!r:.60}, neither a number nor a list of {layers} marks, one a layer"
        )
    kinds = ["sliding_attention" if mark else "full_attention" for mark in marks]
    return {"layer_types": kinds, **({"sliding_window": window} if window else {})}
