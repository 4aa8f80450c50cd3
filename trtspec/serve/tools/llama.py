"""Llama 3: the whole answer is ``{"name": ..., "parameters": {...}}``, or several of these
separated by semicolons, optionally after ``<|python_tag|>``."""

from __future__ import annotations

import json
import re

from trtspec.serve.tools.json_text import read_call, whole_call
from trtspec.serve.tools.message import Call, Message
from trtspec.serve.tools.parser import Schema, Schemas, ToolParser
from trtspec.serve.tools.structure import Grammar, calls_of, json_of, matching, one_of, tag

_TAG = "<|python_tag|>"
_HEADS = ('{"name":"', '{"type":"function","name":"')
_BETWEEN = re.compile(r"\s*\}\s*;?\s*")


class LlamaParser(ToolParser):
    """JSON without marks."""

    name, others = "llama3_json", ("llama3", "llama4_json")
    begin = "{"
    marks = (_TAG,)
    signs = ("<|eot_id|>", '"parameters"')
    separator = "; "

    def read(self, text: str, is_whole: bool, tools: Schemas) -> Message:
        start = len(text) - len(text.lstrip())
        if text.startswith(_TAG, start):
            start += len(_TAG)
        elif not is_whole and _TAG.startswith(text[start:]):
            return Message()
        calls: list[Call] = []
        while start < len(text):
            found = read_call(text, start, _TAG, is_whole)
            if found is None:
                break
            calls.append(found[0])
            behind = _BETWEEN.match(text, found[1])
            start = behind.end() if behind is not None else len(text)
        if calls:
            return Message(calls=tuple(calls))
        if _may_be_call(text[start:]):
            call = whole_call(text[start:]) if is_whole else None
            if call is not None and call.name in tools:
                return Message(calls=(call,))
            if not is_whole:
                return Message()
        return Message(content=text)

    def call(self, name: str, schema: Schema) -> Grammar:
        return tag(f'{{"name": {json.dumps(name)}, "parameters": ', json_of(schema), "}")

    def optional(self, tools: Schemas) -> Grammar:
        calls = calls_of([self.call(*tool) for tool in tools.items()], self.separator, True)
        return one_of(calls, matching(r"([^{\s](.|\n)*)?"))


def _may_be_call(text: str) -> bool:
    """Whether a partial text may be the beginning of a call."""
    longest = max(map(len, _HEADS))
    begun = re.sub(r"\s", "", text[: 4 * longest])[:longest]
    return any(head.startswith(begun) or begun.startswith(head) for head in _HEADS)
