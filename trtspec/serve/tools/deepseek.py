"""DeepSeek V3.1 writes a call as a name and JSON, each behind a mark. V3 and R1 write a type before
the name and fence the JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from trtspec.serve.tools.json_text import read_object
from trtspec.serve.tools.message import Call
from trtspec.serve.tools.parser import BlockParser, Schema, Schemas
from trtspec.serve.tools.structure import Grammar, json_of, tag


def _mark(words: str) -> str:
    """A special token in these models' spelling, with look-alikes of | and _."""
    return "<\uff5c" + words.replace(" ", "\u2581") + "\uff5c>"


_BEGIN, _SEPARATOR, _END = _mark("tool call begin"), _mark("tool sep"), _mark("tool call end")
_ALL = (_mark("tool calls begin"), _mark("tool calls end"))
_FENCE = "```"
_FENCED = re.compile(rf"\s*function{_SEPARATOR}([^\n<]+)\n{_FENCE}json\n\s*(?=\{{)")
_PLAIN = re.compile(rf"\s*([^\n<]+?){_SEPARATOR}\s*(?=\{{)")


class DeepSeekParser(BlockParser):
    """A name, then JSON."""

    name, others = "deepseek_v31", ("deepseek_v3.1",)
    begin = _BEGIN
    marks = (_BEGIN, _SEPARATOR, _END, *_ALL)
    dropped = around = _ALL
    signs: ClassVar[tuple[str, ...]] = (_BEGIN,)

    def block(
        self, text: str, start: int, is_whole: bool, tools: Schemas
    ) -> tuple[Sequence[Call], int] | None:
        head = _FENCED.match(text, start) or _PLAIN.match(text, start)
        if head is None:
            ended = is_whole or text.find(_END, start) >= 0
            return None if ended else ((), len(text))
        arguments, end = read_object(text, head.end(), _END, is_whole)
        end = text.find(_END, end)
        return [Call(head[1], arguments)], len(text) if end < 0 else end + len(_END)

    def call(self, name: str, schema: Schema) -> Grammar:
        return tag(f"{_BEGIN}{name}{_SEPARATOR}", json_of(schema), _END)


class DeepSeekFencedParser(DeepSeekParser):
    """A type, a name, then fenced JSON."""

    name, others = "deepseek_v3", ("deepseek_r1",)
    signs = (_BEGIN, f"{_FENCE}json")
    separator = "\n"
    arguments_as_text = True

    def call(self, name: str, schema: Schema) -> Grammar:
        head = f"{_BEGIN}function{_SEPARATOR}{name}\n{_FENCE}json\n"
        return tag(head, json_of(schema), f"\n{_FENCE}{_END}")
