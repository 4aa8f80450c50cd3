"""Qwen3-Coder and Qwen 3.5: ``<function=name><parameter=key>value</parameter></function>`` inside
``<tool_call>``, which some answers omit."""

from __future__ import annotations

import re
from collections.abc import Sequence

from trtspec.serve.tools.message import Call
from trtspec.serve.tools.parser import BlockParser, Schema, Schemas
from trtspec.serve.tools.structure import Grammar, tag, text_with
from trtspec.serve.tools.xml_text import XmlArguments

_BEGIN, _END = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_NAME = re.compile(r"\s*([^\s>]+)\s*>")
_ARGUMENTS = XmlArguments(
    key=re.compile(r"\s*<parameter=([^\n>]+)>"),
    opening="<parameter={}>",
    value_end="</parameter>",
    block_end=_FUNCTION_END,
    line="\n",
)


class QwenXmlParser(BlockParser):
    """Tags that contain the names."""

    name, others = "qwen3_coder", ("qwen3_xml",)
    begin = _FUNCTION
    marks = dropped = (_BEGIN, _END)
    signs = (_FUNCTION, "<parameter=")
    separator = "\n"

    def block(
        self, text: str, start: int, is_whole: bool, tools: Schemas
    ) -> tuple[Sequence[Call], int] | None:
        head = _NAME.match(text, start)
        if head is None:
            return None if is_whole or ">" in text[start:] else ((), len(text))
        arguments, end = _ARGUMENTS.read(text, head.end(), is_whole, tools.get(head[1], {}))
        return [Call(head[1], arguments)], min(end + len(_FUNCTION_END), len(text))

    def call(self, name: str, schema: Schema) -> Grammar:
        head = f"{_BEGIN}\n{_FUNCTION}{name}>\n"
        return tag(head, _ARGUMENTS.grammar(schema), f"{_FUNCTION_END}\n{_END}")

    def optional(self, tools: Schemas) -> Grammar:
        return text_with(_BEGIN, [self.call(*tool) for tool in tools.items()])
