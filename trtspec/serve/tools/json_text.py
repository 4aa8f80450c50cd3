"""Tool calls written as JSON, possibly incomplete."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

from trtspec.serve.tools.message import Call, held

_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_KEYS = ("arguments", "parameters")
_HEAD = re.compile(
    r'\s*\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?'
    rf'"name"\s*:\s*({_STRING})\s*,\s*"(?:{"|".join(_KEYS)})"\s*:\s*(?=\{{)',
    re.DOTALL,
)


def read_call(text: str, start: int, stop: str, is_whole: bool) -> tuple[Call, int] | None:
    """The call ``{"name": ..., "arguments": {...}}`` at ``start``, as far as it has arrived, and
    where its arguments end (the end of the text if they are incomplete). None if there is no call,
    or not yet."""
    head = _HEAD.match(text, start)
    if head is None:
        return None
    try:
        name = str(json.loads(head[1], strict=False))
    except ValueError:  # an escape that is none
        return None
    arguments, end = read_object(text, head.end(), stop, is_whole)
    return Call(name, arguments), end


def read_object(text: str, start: int, stop: str, is_whole: bool) -> tuple[str, int]:
    """The JSON object at ``start``, verbatim, and where it ends. A malformed one ends before the
    first ``stop`` outside a string."""
    depth = 0
    for found in _scanner(stop).finditer(text, start):
        token = found[0]
        if token == '"':
            break  # a string that has not ended
        if token == stop:
            return text[start : found.start()].rstrip(), found.start()
        depth += (token in "{[") - (token in "}]")
        if depth == 0 and token in "}]":
            return text[start : found.end()], found.end()
    value = text[start:]
    if not is_whole:
        value = value[: len(value) - held(value, stop)].rstrip()
    return value, len(text)


def whole_call(text: str) -> Call | None:
    """The call that a complete JSON text describes, with its keys in any order; None if it is not a
    call."""
    try:
        value = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments: Any = next((value[key] for key in _KEYS if key in value), {})
    return Call(value["name"], _as_text(arguments))


def _as_text(arguments: Any) -> str:
    """Arguments that some models write as a JSON string rather than an object."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


@lru_cache
def _scanner(stop: str) -> re.Pattern[str]:
    return re.compile(rf'{_STRING}|["{{}}\[\]]|{re.escape(stop)}', re.DOTALL)
