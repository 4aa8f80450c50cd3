"""Rotary settings of config.json, in the spellings of transformers 4 and 5 -> RopeConfig."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trtspec.config.rope import ROPE_TYPES, RopeConfig
from trtspec.errors import CheckpointError

_DEFAULT_THETA = 10000.0
_ORIGINAL = "original_max_position_embeddings"

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
    "longrope": (
        "factor",
        "original_max_position_embeddings",
        "attention_factor",
        "short_factor",
        "long_factor",
    ),
    "proportional": ("factor",),
}
"""Keys that each type reads; as in transformers, keys of other types are ignored."""

_NAMES = {"rope_type", "type", "rope_theta", "partial_rotary_factor", "finetuned"}


def read_rope(
    config: Mapping[str, Any], refuse: Callable[[str], CheckpointError], partial: bool = False
) -> RopeConfig:
    """The rope of a config.json. transformers 5 writes everything in ``rope_parameters``; 4 writes
    ``rope_theta`` and ``rope_scaling`` (null, or a dict with ``rope_type`` or ``type``).

    If both are present ``rope_scaling`` wins, as in transformers. ``refuse`` creates the error for
    an unsupported type or key or, unless ``partial``, for partial rotation.
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
    if part not in (None, 1) and not partial and kind != "proportional":
        raise refuse(f"partial_rotary_factor {part!r} is not supported; supported: 1.0")

    fields = {name: values[name] for name in _USED[kind] if name in values}
    theta = values.get("rope_theta", config.get("rope_theta"))
    fields["theta"] = _DEFAULT_THETA if theta is None else theta
    if kind in ("llama3", "yarn", "longrope"):
        # A value beside the dict counts before one in it: transformers' order.
        original = config.get("original_max_position_embeddings")
        if original is None:
            original = values.get(
                "original_max_position_embeddings", config.get("max_position_embeddings")
            )
        fields["original_max_position_embeddings"] = original
        longest = config.get("max_position_embeddings")
        if kind in ("yarn", "longrope") and "factor" not in fields and original:
            fields["factor"] = _ratio(longest, original)
    if kind == "proportional" and part is not None:
        fields["turning"] = part
    if kind not in ("default", "proportional") and fields.get("factor") is None:
        raise refuse(f"{key} of type {kind} does not say factor")
    # transformers reads a zero as "not given" here.
    for name in ("short_factor", "long_factor"):
        if name in fields:
            fields[name] = _numbers(fields[name], f"{key}'s {name}", refuse)
    for name in ("beta_fast", "beta_slow"):
        if fields.get(name) == 0:
            del fields[name]
    return RopeConfig(type=kind, **fields)


def read_length(config: Mapping[str, Any], ropes: Sequence[RopeConfig], length: Any) -> Any:
    """The sequence length that a model was made for: ``length`` (max_position_embeddings), or more
    if yarn states the original length that it stretched. A factor alone does not say whether
    ``length`` includes it (with linear ropes it usually does), and transformers does not apply it.
    """
    if not isinstance(length, int) or not _says_original(config):
        return length
    return min(
        (rope.stretched(length) if rope.type == "yarn" else length for rope in ropes),
        default=length,
    )


def _says_original(config: Mapping[str, Any]) -> bool:
    """Whether a config or one of its ropes gives the length before stretching."""
    given = [config.get("rope_scaling"), config.get("rope_parameters")]
    ropes = [rope for rope in given if isinstance(rope, dict)]
    ropes += [part for rope in ropes for part in rope.values() if isinstance(part, dict)]
    return any(each.get(_ORIGINAL) is not None for each in (config, *ropes))


def read_ropes_by_kind(
    config: Mapping[str, Any],
    refuse: Callable[[str], CheckpointError],
    theta: float,
    sliding_theta: float | None = None,
) -> tuple[RopeConfig, RopeConfig]:
    """The tables of layers with full attention and of those with a window. transformers 5 writes
    ``rope_parameters`` with one object for each; 4 writes keys for full attention, and the base of
    the others as ``rope_local_base_freq``. ``theta``, ``sliding_theta``: their defaults; None: the
    others have the same base."""
    kinds = ("full_attention", "sliding_attention")
    given = config.get("rope_parameters")
    common = {k: v for k, v in config.items() if not k.startswith("rope_")}
    if isinstance(given, dict) and any(kind in given for kind in kinds):
        unknown = sorted(set(given) - set(kinds))
        if unknown:
            raise refuse(f"rope_parameters has unknown keys {', '.join(unknown)}")
        bases = (theta, sliding_theta or theta)
        tables = (
            {"rope_theta": base, **(given.get(kind) or {})}
            for kind, base in zip(kinds, bases, strict=True)
        )
        full, sliding = (read_rope({**common, "rope_parameters": t}, refuse) for t in tables)
        return full, sliding
    full = read_rope({"rope_theta": theta, **_said(config)}, refuse)
    local = config.get("rope_local_base_freq")
    if local is None:
        local = full.theta if sliding_theta is None else sliding_theta
    return full, read_rope({**common, "rope_theta": local}, refuse)


def read_rotary_dim(
    config: Mapping[str, Any],
    head_dim: int,
    default: float,
    refuse: Callable[[str], CheckpointError],
) -> int:
    """The number of rotated elements per head, from ``partial_rotary_factor``; ``default`` if
    absent."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    part = given.get("partial_rotary_factor") if isinstance(given, dict) else None
    if part is None:
        part = config.get("partial_rotary_factor")
    if part is None:
        part = default
    if not isinstance(part, (int, float)) or not 0 < part <= 1:
        raise refuse(f"partial_rotary_factor is {part!r}; it must be above 0 and at most 1")
    return int(head_dim * part)


def _said(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if value is not None}


def _numbers(value: Any, name: str, refuse: Callable[[str], CheckpointError]) -> tuple[float, ...]:
    if not isinstance(value, list) or not all(isinstance(x, (int, float)) for x in value):
        raise refuse(f"{name} is {value!r:.80}, not a list of numbers")
    return tuple(float(x) for x in value)


def _ratio(longest: Any, original: Any) -> Any:
    """transformers' factor if yarn gives none; None if the lengths are not numbers."""
    if isinstance(longest, int) and isinstance(original, int):
        return longest / original
    return None
