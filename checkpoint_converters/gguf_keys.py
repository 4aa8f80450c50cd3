"""GgufKeys: what the GGUF files of a family say beside what those of all families do."""

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
    """GGUF's keys stand behind the architecture's name; config.json's are transformers'.

    epsilon: the key of the norms' epsilon, and config.json's. reads: config.json's key by GGUF's
    for numbers that are taken over; a zero means, as in llama.cpp, that it is not set.
    window_period: of so many layers the last one has no window, where the file gives one without
    saying which layers do; 0: the family has none. default_window: where the file gives none.
    longrope: whether it may hold two tensors of factors. marks_turning: whether its tensor of
    factors says which part of a head turns. by_layer: config.json's keys whose number may be a list
    of one for each layer, for ``derives`` to read. of_images: GGUF's keys that change no text.
    instead: GGUF's keys that may say in place of others, where these are missing.
    derives: further values of config.json, of the
    file and of those that were read.
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
        """GGUF's keys whose values may be any."""
        scale = {"rope.scaling.attn_factor"} if self.longrope else set()
        return {*self.reads, *self.of_images, *scale, *({WINDOW} if self.window_period else ())}


def layer_windows(file: GgufFile, architecture: str, keys: GgufKeys, layers: int) -> dict[str, Any]:
    """``sliding_window`` and ``layer_types`` of config.json; nothing for a family without windows.

    Raises:
        CheckpointError: a pattern that is neither a number nor a list of a mark for each layer.
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
