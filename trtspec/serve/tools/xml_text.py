"""Arguments written one after another between tags instead of as JSON."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from trtspec.errors import RequestError
from trtspec.serve.tools.message import held
from trtspec.serve.tools.parser import Schema
from trtspec.serve.tools.structure import (
    ANY_TEXT,
    Grammar,
    fixed,
    in_order,
    json_of,
    maybe,
    one_of,
    tag,
)

_PYTHON = {"True": True, "False": False, "None": None}


@dataclass(frozen=True)
class XmlArguments:
    """key: a pattern whose group is an argument's name and after which its value begins. opening:
    the same text with ``{}`` for the name. value_end, block_end: the ends of a value and of all
    arguments. line: whether line ends around a value belong to the tags."""

    key: re.Pattern[str]
    opening: str
    value_end: str
    block_end: str
    line: str = ""

    def read(self, text: str, start: int, is_whole: bool, schema: Schema) -> tuple[str, int]:
        """The arguments from ``start`` as a JSON object, as far as they are certain, and where the
        block ends (the end of the text if it is incomplete)."""
        written: list[str] = []
        position = start
        while (key := self.key.match(text, position)) is not None:
            end = self._first(text, key.end(), self.value_end, self.block_end)
            kind = _kind_of(schema, key[1])
            name = json.dumps(key[1], ensure_ascii=False)
            if end is None:
                value = self._open_value(text[key.end() :], is_whole, kind)
                written += [f"{name}: {value}"] if value is not None else []
                return "{" + ", ".join(written), len(text)
            value = text[key.end() : end].removeprefix(self.line).removesuffix(self.line)
            written.append(f"{name}: {_as_json(value, kind)}")
            position = end + len(self.value_end) * text.startswith(self.value_end, end)
        end = text.find(self.block_end, position)
        # Until the block has ended another argument may come.
        closing = "}" if end >= 0 or is_whole else ""
        return "{" + ", ".join(written) + closing, len(text) if end < 0 else end

    def grammar(self, schema: Schema) -> Grammar:
        """The grammar of what `read` reads as an object with this schema.

        Raises:
            RequestError: the schema does not list its properties, or one cannot be written.
        """
        properties = schema.get("properties", {})
        if not isinstance(properties, dict) or {"$ref", "anyOf", "oneOf", "allOf"} & schema.keys():
            raise RequestError(
                "tools: a schema of arguments must list its `properties`, as this model writes "
                "them one by one"
            )
        definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        required = schema.get("required", [])
        if not isinstance(required, list):
            raise RequestError(f"tools: `required` is {required!r:.40}; it must list properties")
        parts = []
        for name, inner in properties.items():
            if not isinstance(inner, dict):
                raise RequestError(
                    f"tools: the property {name[:64]!r} is {inner!r:.40}; its schema must be an "
                    "object"
                )
            written = self.key.match(self.opening.format(name))
            if written is None or written[1] != name:
                raise RequestError(
                    f"tools: the property {name[:64]!r} has a name that this model cannot write "
                    "between its tags; use letters, digits and underscores"
                )
            part = self._argument(name, inner, definitions, _kind_of(schema, name))
            parts.append(part if name in required else maybe(part))
        return in_order(fixed(""), *parts)

    def _argument(
        self, name: str, schema: dict[str, Any], definitions: dict[str, Any], kind: str
    ) -> Grammar:
        begin = self.opening.format(name) + self.line
        end = self.value_end + "\n"
        choices = schema.get("enum")
        if kind != "string":
            return tag(begin, json_of({**definitions, **schema}), self.line + end)
        if choices:
            return tag(begin, one_of(*map(fixed, choices)), self.line + end)
        return tag(begin, ANY_TEXT, end)

    def _open_value(self, value: str, is_whole: bool, kind: str) -> str | None:
        """An unfinished value; None while its beginning is still ambiguous."""
        value = value.removeprefix(self.line)
        if kind != "string" and not is_whole:
            return None
        if not is_whole:
            value = value[: len(value) - held(value, self.value_end, self.block_end)]
            value = value.removesuffix(self.line)
        return json.dumps(value, ensure_ascii=False)[:-1] if kind == "string" else value

    @staticmethod
    def _first(text: str, start: int, *ends: str) -> int | None:
        found = [place for end in ends if (place := text.find(end, start)) >= 0]
        return min(found, default=None)


def _kind_of(schema: Schema, name: str) -> str:
    """The type of an argument; empty if it may have several."""
    properties = schema.get("properties")
    inner = properties.get(name) if isinstance(properties, dict) else None
    if not isinstance(inner, dict):
        return ""
    choices = inner.get("enum")
    if isinstance(choices, list) and choices:
        return "string" if all(isinstance(choice, str) for choice in choices) else ""
    kind = inner.get("type")
    return kind if isinstance(kind, str) else ""


def _as_json(value: str, kind: str) -> str:
    """A value as JSON; anything that is not JSON becomes a string."""
    if kind != "string":
        try:
            said = (
                _PYTHON[value.strip()]
                if value.strip() in _PYTHON
                else json.loads(value, parse_constant=_no_number)
            )
        except (ValueError, RecursionError):
            return json.dumps(value, ensure_ascii=False)
        return json.dumps(said, ensure_ascii=False)
    return json.dumps(value, ensure_ascii=False)


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
