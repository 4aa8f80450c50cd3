"""Mistral: ``[TOOL_CALLS]name[ARGS]{...}`` for each call; older models write
``[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]``. Both parsers read both forms."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import ClassVar

from trtspec.serve.tools.json_text import read_call, read_object, whole_call
from trtspec.serve.tools.message import Call
from trtspec.serve.tools.parser import BlockParser, Schema, Schemas
from trtspec.serve.tools.structure import Grammar, json_of, tag

_BEGIN, _ARGUMENTS = "[TOOL_CALLS]", "[ARGS]"
# The id is of the model's making, and of no use: answers have ids of their own.
_NAMED = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\][\w-]+)?\s*(?:\[ARGS\])?\s*(?=\{)")
_BETWEEN = re.compile(r"\s*\}\s*(?:,|(\]))?")


class MistralParser(BlockParser):
    """A mark before each name."""

    name = "mistral"
    others: ClassVar[tuple[str, ...]] = ("ministral", "magistral")
    begin = _BEGIN
    marks = (_BEGIN, _ARGUMENTS, "[CALL_ID]")
    signs: ClassVar[tuple[str, ...]] = (_BEGIN, _ARGUMENTS)

    def block(
        self, text: str, start: int, is_whole: bool, tools: Schemas
    ) -> tuple[Sequence[Call], int] | None:
        rest = text[start:].lstrip()
        if rest.startswith("["):
            return _listed(text, text.index("[", start) + 1, is_whole)
        named = _NAMED.match(text, start)
        if named is None:
            return None if is_whole or "{" in rest else ((), len(text))
        arguments, end = read_object(text, named.end(), _BEGIN, is_whole)
        return [Call(named[1], arguments)], end

    def call(self, name: str, schema: Schema) -> Grammar:
        return tag(f"{_BEGIN}{name}{_ARGUMENTS}", json_of(schema), "")


class MistralListParser(MistralParser):
    """A list of JSON behind one mark."""

    name, others = "mistral_list", ("mistral_v3",)
    signs = (_BEGIN, '"arguments"')
    separator, around = ", ", (f"{_BEGIN}[", "]")

    def call(self, name: str, schema: Schema) -> Grammar:
        return tag(f'{{"name": {json.dumps(name)}, "arguments": ', json_of(schema), "}")


def _listed(text: str, start: int, is_whole: bool) -> tuple[Sequence[Call], int] | None:
    calls: list[Call] = []
    position = start
    while (found := read_call(text, position, _BEGIN, is_whole)) is not None:
        calls.append(found[0])
        behind = _BETWEEN.match(text, found[1])
        if behind is None or behind[1]:
            return calls, len(text) if behind is None else behind.end()
        position = behind.end()
    if not calls and is_whole:
        call = whole_call(text[start:].strip().removesuffix("]"))
        return None if call is None else ([call], len(text))
    return calls, len(text)
