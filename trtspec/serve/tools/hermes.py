"""Hermes, and Qwen 2.5 and 3: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``."""

from __future__ import annotations

import json
from collections.abc import Sequence

from trtspec.serve.tools.json_text import read_call, whole_call
from trtspec.serve.tools.message import Call
from trtspec.serve.tools.parser import BlockParser, Schema, Schemas
from trtspec.serve.tools.structure import Grammar, json_of, tag

_END = "</tool_call>"


class HermesParser(BlockParser):
    """JSON between tags."""

    name, others = "hermes", ("qwen", "qwen25", "qwen2_5", "qwen3")
    begin = "<tool_call>"
    marks = (begin, _END)
    signs = (begin, '"arguments"')
    separator = "\n"

    def block(
        self, text: str, start: int, is_whole: bool, tools: Schemas
    ) -> tuple[Sequence[Call], int] | None:
        found = read_call(text, start, _END, is_whole)
        if found is None:
            end = text.find(_END, start)
            if end < 0 and not is_whole:
                return (), len(text)
            call = whole_call(text[start : end if end >= 0 else len(text)])
            if call is None:
                return None
            found = call, start
        end = text.find(_END, found[1])
        return [found[0]], len(text) if end < 0 else end + len(_END)

    def call(self, name: str, schema: Schema) -> Grammar:
        head = f'{self.begin}\n{{"name": {json.dumps(name)}, "arguments": '
        return tag(head, json_of(schema), "}\n" + _END)
