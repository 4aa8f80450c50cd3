"""structural_tag: texts of fixed and of free parts, as a grammar in llguidance's dialect of Lark.

The form is xgrammar's, as vLLM and SGLang take it:
``{"type": "structural_tag", "format": {...}}``, or the older ``{"structures": [...], "triggers":
[...]}``, which is its `triggered_tags` with JSON inside.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from trtspec.errors import RequestError

_TEXT = "TEXT: /(.|\\n)*/"


def structural_tag(
    given: Mapping[str, Any], json_options: Mapping[str, Any], special: Mapping[str, int]
) -> str:
    """``json_options``: of the parts that are JSON. ``special``: text -> id of the tokens that are
    no text to the library.

    Raises:
        RequestError: a part is unknown, or lacks what it is made of; its place is named.
    """
    form = given.get("format") if given.get("type") == "structural_tag" else _triggered(given)
    rules = _Rules(json_options, special)
    start = rules.part(form, "format")
    return "\n".join(["%llguidance {}", f"start: {start}", _TEXT, *rules.lines])


class _Rules:
    def __init__(self, json_options: Mapping[str, Any], special: Mapping[str, int]) -> None:
        self.lines: list[str] = []
        self._json_options, self._special = json_options, special
        names = "|".join(map(re.escape, sorted(special, key=len, reverse=True)))
        self._marks = re.compile(f"({names})") if names else None
        self._parts: dict[str, Callable[[Mapping[str, Any], str], str]] = {
            "const_string": lambda form, place: self._literal(_text(form, "value", place, True)),
            "json_schema": lambda form, place: self._json(_object(form, "json_schema", place)),
            "regex": self._regex,
            "any_text": lambda form, place: "TEXT",
            "sequence": lambda form, place: f"({' '.join(self._all(form, 'elements', place))})",
            "or": lambda form, place: f"({' | '.join(self._all(form, 'elements', place))})",
            "optional": lambda form, place: f"({self._inner(form, place)})?",
            "tag": lambda form, place: " ".join(self._tag(form, place)),
            "triggered_tags": self._triggered_tags,
            "tags_with_separator": self._tags_with_separator,
        }

    def part(self, form: Any, place: str) -> str:
        """An expression that matches it."""
        kind = form.get("type") if isinstance(form, Mapping) else None
        if not isinstance(kind, str) or kind not in self._parts:
            raise RequestError(
                f"`structural_tag`: {place}.type is {kind!r:.40}; it must be one of "
                f"{', '.join(self._parts)}"
            )
        return self._parts[kind](form, place)

    def _all(self, form: Mapping[str, Any], key: str, place: str) -> list[str]:
        elements = _list(form, key, place)
        return [self.part(element, f"{place}.{key}[{i}]") for i, element in enumerate(elements)]

    def _inner(self, form: Mapping[str, Any], place: str) -> str:
        return self.part(form.get("content"), f"{place}.content")

    def _rule(self, body: str, options: str = "") -> str:
        name = f"r{len(self.lines)}"
        self.lines.append(f"{name}{options}: {body}")
        return name

    def _literal(self, text: str) -> str:
        return " ".join(self._pieces(text)) or '""'

    def _pieces(self, text: str) -> list[str]:
        """A text in order: what is text to the library too, and tokens of their own."""
        pieces = self._marks.split(text) if self._marks is not None else [text]
        tokens = {name: f"<[{token}]>" for name, token in self._special.items()}
        return [tokens.get(piece) or json.dumps(piece) for piece in pieces if piece]

    def _json(self, schema: Mapping[str, Any]) -> str:
        return self._rule(f"%json {json.dumps({'x-guidance': self._json_options, **schema})}")

    def _regex(self, form: Mapping[str, Any], place: str) -> str:
        pattern = _text(form, "pattern", place)
        return self._rule("/" + re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\\/", pattern) + "/")

    def _tag(self, form: Any, place: str, trigger: str = "") -> list[str]:
        """Begin (less the trigger before it), content and end."""
        begin, end = _text(form, "begin", place, True), _text(form, "end", place, True)
        parts = [self._literal(begin[len(trigger) :])]
        content = form.get("content")
        if isinstance(content, Mapping) and content.get("type") == "any_text" and end:
            parts.append(self._text_until(end))
        else:
            parts += [self._inner(form, place), self._literal(end)]
        return parts

    def _text_until(self, end: str) -> str:
        """Free text, which ends at the first place where ``end`` comes."""
        first, *rest = self._pieces(end)
        text = f"TEXT {first}" if first.startswith("<") else self._rule(f"TEXT {first}", "[lazy]")
        return " ".join([text, *rest])

    def _triggered_tags(self, form: Mapping[str, Any], place: str) -> str:
        triggers = [t for t in _list(form, "triggers", place) if isinstance(t, str) and t]
        bodies: dict[str, list[str]] = {}
        for i, each in enumerate(_list(form, "tags", place)):
            inside = f"{place}.tags[{i}]"
            begin = _text(each, "begin", inside)
            trigger = next((t for t in triggers if begin.startswith(t)), None)
            if trigger is None:
                raise RequestError(
                    f"`structural_tag`: no trigger begins {begin!r:.80}; triggers: {triggers!r:.80}"
                )
            body = " ".join(self._tag(each, inside, trigger))
            bodies.setdefault(trigger, []).append(body)
        tags = [f"{self._text_until(t)} ({' | '.join(each)})" for t, each in bodies.items()]
        once = " | ".join(self._rule(each) for each in tags)
        if form.get("stop_after_first"):
            return f"({once})" if form.get("at_least_one") else f"({once} | TEXT)"
        return f"({once}){'+' if form.get('at_least_one') else '*'} TEXT"

    def _tags_with_separator(self, form: Mapping[str, Any], place: str) -> str:
        one = self._rule(" | ".join(self._all(form, "tags", place)))
        several = one
        if not form.get("stop_after_first"):
            separator = self._literal(_text(form, "separator", place, True))
            several = f"{one} ({separator} {one})*"
        return f"({several})" if form.get("at_least_one") else f"({several})?"


def _triggered(given: Mapping[str, Any]) -> dict[str, Any]:
    """The older form in the newer one."""
    triggers, structures = given.get("triggers"), given.get("structures")
    if not isinstance(triggers, list) or not isinstance(structures, list) or not structures:
        raise RequestError(
            "`structural_tag` needs lists `structures` and `triggers`, or type='structural_tag' "
            f"and a `format`; got {', '.join(given) or 'nothing'}"
        )
    tags = []
    for structure in structures:
        given = structure if isinstance(structure, Mapping) else {}
        begin, schema, end = given.get("begin"), given.get("schema", {}), given.get("end", "")
        is_text = isinstance(begin, str) and isinstance(end, str)
        if not begin or not is_text or not isinstance(schema, Mapping):
            raise RequestError(
                "`structural_tag`: a structure is {'begin': str, 'schema': {...}, 'end': str}, "
                f"got {structure!r:.80}"
            )
        content = {"type": "json_schema", "json_schema": schema}
        tags.append({"type": "tag", "begin": begin, "content": content, "end": end})
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags}


def _list(form: Mapping[str, Any], key: str, place: str) -> list[Any]:
    value = form.get(key)
    if not isinstance(value, list) or not value:
        raise RequestError(f"`structural_tag`: {place}.{key} must be a list with items")
    return value


def _text(form: Any, key: str, place: str, may_be_empty: bool = False) -> str:
    value = form.get(key) if isinstance(form, Mapping) else None
    if not isinstance(value, str) or not (value or may_be_empty):
        raise RequestError(f"`structural_tag`: {place}.{key} must be text, got {value!r:.40}")
    return value


def _object(form: Mapping[str, Any], key: str, place: str) -> Mapping[str, Any]:
    value = form.get(key)
    if not isinstance(value, Mapping):
        raise RequestError(f"`structural_tag`: {place}.{key} must be an object")
    return value
