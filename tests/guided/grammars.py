"""Random grammars, and what says whether a text is of one without the library that masks by it."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jsonschema_rs

NAMES = ("name", "größe", "a b", 'q"q', "名前", "x/y")
WORDS = ("cat", "the mat", "naïve", "日本", 'a"b\\c', "\t", "🙂", "catalog")


@dataclass(frozen=True)
class Case:
    """A form, and whether a text has it."""

    guided: dict[str, Any]
    holds: Callable[[str], bool]


def random_case(seed: int) -> Case:
    """A JSON schema, most of the time; else a regex, a choice or a recursive grammar."""
    draw = random.Random(seed)
    kind = draw.choice(("json", "json", "json", "regex", "choice", "grammar", "object"))
    if kind == "json":
        schema = _schema(draw, 3)
        if draw.random() < 0.2:  # a list of lists of lists
            item = {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/t"}]}
            several = {"type": "array", "items": item, "maxItems": 2}
            schema = {"$defs": {"t": several}, "$ref": "#/$defs/t"}
        form = {"json": schema, "disable_any_whitespace": draw.random() < 0.5}
        return Case(form, lambda text: _is_valid(schema, text))
    if kind == "regex":
        pattern = _regex(draw, 2)
        return Case({"regex": pattern}, lambda text: re.fullmatch(pattern, text) is not None)
    if kind == "choice":
        words = draw.sample(WORDS, draw.randint(1, 5))
        return Case({"choice": words}, lambda text: text in words)
    if kind == "grammar":
        return Case({"grammar": 'root ::= "(" root ")" | "[" root root "]" | "é"'}, _is_nested)
    return Case({"json_object": True}, lambda text: _is_valid({"type": "object"}, text))


def _schema(draw: random.Random, depth: int) -> dict[str, Any]:
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "const", "pattern"]
    if depth:
        kinds += ["object"] * 6 + ["array"] * 3 + ["anyOf"]
    kind = draw.choice(kinds)
    if kind == "object":
        names = draw.sample(NAMES, draw.randint(0, 3))
        return {
            "type": "object",
            "properties": {name: _schema(draw, depth - 1) for name in names},
            "required": [name for name in names if draw.random() < 0.7],
            "additionalProperties": False,
        }
    if kind == "array":
        least = draw.randint(0, 2)
        length = {"minItems": least, "maxItems": least + draw.randint(0, 2)}
        return {"type": "array", "items": _schema(draw, depth - 1), **length}
    if kind == "anyOf":
        return {"anyOf": [_schema(draw, depth - 1) for _ in range(2)]}
    if kind == "enum":
        return {"enum": draw.sample([*WORDS, 3, None, True], 3)}
    if kind == "const":
        return {"const": draw.choice(WORDS)}
    if kind == "pattern":
        return {"type": "string", "pattern": "^[a-c]{1,3}-[0-9]{2}$"}
    if kind == "string":
        return {"type": "string", "maxLength": draw.randint(0, 6)}
    if kind in ("integer", "number"):
        return {"type": kind, "minimum": -20, "maximum": 300}
    return {"type": kind}


def _regex(draw: random.Random, depth: int) -> str:
    parts = []
    for _ in range(draw.randint(1, 3)):
        kind = draw.choice(("word", "class", "group") if depth else ("word", "class"))
        if kind == "word":
            parts.append(re.escape(draw.choice(("cat", "the ", "é", "日本"))))
        elif kind == "class":
            parts.append(draw.choice(("[a-h]{1,3}", "[0-9]?", "[^a-z]", "(?:x|yy|zé)")))
        else:
            either = "|".join(_regex(draw, depth - 1) for _ in range(2))
            parts.append(f"(?:{either}){draw.choice(('', '?', '{1,2}'))}")
    return "".join(parts)


def _is_valid(schema: dict[str, Any], text: str) -> bool:
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return bool(jsonschema_rs.is_valid(schema, value))


def _is_nested(text: str) -> bool:
    while text != "é":
        shorter = text.replace("(é)", "é").replace("[éé]", "é")
        if shorter == text:
            return False
        text = shorter
    return True
