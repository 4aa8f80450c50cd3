"""Words pydantic's findings about a request, naming the value and its limit."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Any

_ITEMS = {"list": "items", "dict": "entries", "str": "characters"}
_KINDS = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
}
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("above", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("below", "lt"),
}


def said_of(finding: Mapping[str, Any]) -> str:
    """The reason of a finding, to be put after its place."""
    kind, value, limits = finding["type"], finding.get("input"), finding.get("ctx", {})
    if kind in _BOUNDS:
        word, bound = _BOUNDS[kind]
        return f"it is {value!r:.40}, but must be {word} {limits[bound]}"
    if kind in _KINDS:
        return f"it must be {_KINDS[kind]}, got {_shown(value)}"
    what = _ITEMS.get(type(value).__name__, "items")
    if kind in ("too_long", "string_too_long"):
        count = len(value) if isinstance(value, Sized) else limits.get("actual_length")
        return f"it has {count} {what}; at most {limits['max_length']} are taken"
    if kind in ("too_short", "string_too_short"):
        return f"it is empty; give at least {limits['min_length']} of its {what}"
    if kind == "missing":
        return "it is missing"
    reason: str = finding["msg"]
    return reason.removeprefix("Value error, ")


def _shown(value: Any) -> str:
    """A value's kind, and the value itself if it is short."""
    if value is None:
        return "null"
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    return f"{value!r:.40}"
