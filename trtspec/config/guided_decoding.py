"""GuidedDecodingParams: constraints on a request's text, checked on construction."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trtspec.config.strict import Foreign, strict_config
from trtspec.errors import RequestError

MAX_GRAMMAR_CHARS = 256 * 1024
"""Compile time grows with the text; schemas of whole APIs stay below this."""

MAX_SCHEMA_NESTING = 100
"""The JSON parser gives up at 128 levels, and each level of a schema uses some of them."""

_LIBRARY = "grammars are read by llguidance alone"
_SPELLINGS = {
    "json_schema": "json",
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "ebnf": "grammar",
}
_FOREIGN = {
    "backend": Foreign(_LIBRARY, (None, "auto", "guidance", "llguidance")),
    "disable_fallback": Foreign(_LIBRARY, (None, False, True)),
}
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"?', re.DOTALL)
"""A JSON string, closed or not. If closing were required, each quote inside an unclosed string
would start another search to the end."""


@strict_config(aliases=_SPELLINGS, foreign=_FOREIGN, none_means_default=True, error=RequestError)
@dataclass(frozen=True)
class GuidedDecodingParams:
    """The form that a text must have; exactly one of the first six is given.

    json: a JSON schema, as a mapping, as text, or as a class that has ``model_json_schema`` (a
    pydantic model); stored as text. json_object: any JSON object. regex: matches the whole text, in
    the syntax of Rust's regex crate, without look-around. choice: the text is one of these.
    grammar: in Lark, or in llama.cpp's EBNF (GBNF). structural_tag: free text in which a trigger
    starts a constrained part: a mapping, or text, ``{"structures": [{"begin": str, "schema": {...},
    "end": str}, ...], "triggers": [...]}``, or xgrammar's ``{"type": "structural_tag", "format":
    {...}}``, with the types const_string, json_schema, regex, any_text, sequence, or, optional,
    tag, triggered_tags and tags_with_separator. whitespace_pattern: a regex for white space between
    JSON tokens; by default up to 20 characters. disable_any_whitespace: allow none.
    """

    json: Any = None
    json_object: bool = False
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    structural_tag: Any = None
    whitespace_pattern: str | None = None
    disable_any_whitespace: bool = False

    def __post_init__(self) -> None:
        kinds = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")
        given = [kind for kind in kinds if getattr(self, kind) not in (None, False)]
        if len(given) != 1:
            raise RequestError(
                f"guided decoding takes exactly one of {', '.join(kinds)}; got "
                f"{' and '.join(given) or 'none of them'}"
            )
        for name in ("json", "structural_tag"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, _json_text(name, value))
        if self.choice is not None and not self.choice:
            raise RequestError("`choice` is empty: no text could come; give at least one")
        for name in ("regex", "grammar", "whitespace_pattern"):
            if getattr(self, name) == "":
                raise RequestError(f"`{name}` is empty; leave it out, or say what may come")
        size = sum(len(text) for text in self._texts())
        if size > MAX_GRAMMAR_CHARS:
            raise RequestError(
                f"`{given[0]}` has {size} characters; at most {MAX_GRAMMAR_CHARS} are taken"
            )

    def _texts(self) -> Iterator[str]:
        yield from (text for text in (self.json, self.regex, self.grammar) if text is not None)
        yield from self.choice or ()
        yield self.structural_tag or ""


def _json_text(name: str, value: Any) -> str:
    """A JSON object as text, whichever way it was given."""
    if hasattr(value, "model_json_schema"):
        value = value.model_json_schema()
    if isinstance(value, Mapping):
        try:
            value = json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise RequestError(f"`{name}` cannot be written as JSON: {error}") from None
    if not isinstance(value, str):
        raise RequestError(f"`{name}` must be a mapping or a text of JSON, got {value!r:.80}")
    depth = _nesting(value)
    if depth > MAX_SCHEMA_NESTING:
        raise RequestError(
            f"`{name}` is nested {depth} levels deep; at most {MAX_SCHEMA_NESTING} are taken: "
            "give inner parts names under $defs"
        )
    try:
        parsed = json.loads(value)
    except ValueError as error:
        raise RequestError(f"`{name}` is no JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise RequestError(f"`{name}` must be a JSON object, got {value!r:.80}")
    return value


def _nesting(text: str) -> int:
    """The depth of brackets in a JSON text, whether or not it is valid."""
    depth = deepest = 0
    for char in _QUOTED.sub("", text):
        if char in "{[":
            depth += 1
            deepest = max(deepest, depth)
        elif char in "}]":
            depth -= 1
    return deepest
