"""Rotary settings of config.json, in the spellings of transformers 4 and 5 -> RopeConfig."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trtspec.config.rope import ROPE_TYPES, RopeConfig
from trtspec.errors import CheckpointError

_DEFAULT_THETA = 10000.0

_USED = {
    "default": (),
    "linear": ("factor",),
    "llama3": (
        "factor",
        "original_max_position_embeddings",
        "low_freq_factor",
        "high_freq_factor",
    ),
    "yarn": (
        "factor",
        "original_max_position_embeddings",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
    ),
}
"""Keys that each type reads; keys of another type are ignored, as transformers does."""

_NAMES = {"rope_type", "type", "rope_theta", "partial_rotary_factor", "finetuned"}


def read_rope(config: Mapping[str, Any], refuse: Callable[[str], CheckpointError]) -> RopeConfig:
    """Rope of a config.json. transformers 5 writes ``rope_parameters`` with everything in it;
    4 writes ``rope_theta`` and ``rope_scaling`` (null, or a dict with ``rope_type`` or ``type``).

    Where both are given ``rope_scaling`` counts, as in transformers. ``refuse`` makes the error
    for a type or key that is not supported, or a part rotation.
    """
    key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    given = config.get(key) or {}
    if not isinstance(given, dict):
        raise refuse(f"{key} is {given!r}, not an object")
    values = {name: value for name, value in given.items() if value is not None}
    nested = [name for name, value in values.items() if isinstance(value, dict)]
    if nested:
        raise refuse(
            f"{key} gives settings by layer type ({', '.join(nested)}), which is not supported; "
            "supported: one setting for all layers"
        )
    kind = values.get("rope_type", values.get("type", "default"))
    if kind not in ROPE_TYPES:
        raise refuse(f"rope type {kind!r} is not supported; supported: {', '.join(ROPE_TYPES)}")
    unknown = sorted(set(values) - _NAMES - {name for names in _USED.values() for name in names})
    if unknown:
        raise refuse(f"{key} has unknown keys {', '.join(unknown)}")
    part = values.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if part not in (None, 1):
        raise refuse(f"partial_rotary_factor {part!r} is not supported; supported: 1.0")

    fields = {name: values[name] for name in _USED[kind] if name in values}
    theta = values.get("rope_theta", config.get("rope_theta"))
    fields["theta"] = _DEFAULT_THETA if theta is None else theta
    if kind in ("llama3", "yarn"):
        # A value beside the dict counts before one in it: transformers' order.
        original = config.get("original_max_position_embeddings")
        if original is None:
            original = values.get(
                "original_max_position_embeddings", config.get("max_position_embeddings")
            )
        fields["original_max_position_embeddings"] = original
        longest = config.get("max_position_embeddings")
        if kind == "yarn" and "factor" not in fields and original:
            fields["factor"] = _ratio(longest, original)
    if kind != "default" and fields.get("factor") is None:
        raise refuse(f"{key} of type {kind} does not say factor")
    # transformers reads a zero as "not given" here.
    for name in ("beta_fast", "beta_slow"):
        if fields.get(name) == 0:
            del fields[name]
    return RopeConfig(type=kind, **fields)


def _ratio(longest: Any, original: Any) -> Any:
    """transformers' factor where yarn gives none; None if the lengths are no numbers."""
    if isinstance(longest, int) and isinstance(original, int):
        return longest / original
    return None
