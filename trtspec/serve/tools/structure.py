"""Parts of a structural tag, as `guided_decoding` takes it: the form of a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Grammar = dict[str, Any]

ANY_TEXT: Grammar = {"type": "any_text"}


def fixed(text: str) -> Grammar:
    """This text."""
    return {"type": "const_string", "value": text}


def matching(pattern: str) -> Grammar:
    """Text that matches a regex."""
    return {"type": "regex", "pattern": pattern}


def json_of(schema: Mapping[str, Any]) -> Grammar:
    """A JSON value."""
    return {"type": "json_schema", "json_schema": dict(schema)}


def tag(begin: str, content: Grammar, end: str) -> Grammar:
    """Content between two texts."""
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def in_order(*parts: Grammar) -> Grammar:
    """The parts, one after another."""
    return {"type": "sequence", "elements": list(parts)}


def one_of(*parts: Grammar) -> Grammar:
    """Any of the parts."""
    return {"type": "or", "elements": list(parts)}


def maybe(part: Grammar) -> Grammar:
    """The part, or nothing."""
    return {"type": "optional", "content": part}


def calls_of(tags: Sequence[Grammar], separator: str, many: bool) -> Grammar:
    """One of the tags, or with ``many`` one or more of them."""
    return {
        "type": "tags_with_separator",
        "tags": list(tags),
        "separator": separator,
        "at_least_one": True,
        "stop_after_first": not many,
    }


def text_with(trigger: str, tags: Sequence[Grammar]) -> Grammar:
    """Free text in which the trigger begins one of the tags."""
    return {"type": "triggered_tags", "triggers": [trigger], "tags": list(tags)}
