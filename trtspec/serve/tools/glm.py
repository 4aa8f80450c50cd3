"""GLM 4.5 to 4.7: ``<arg_key>key</arg_key><arg_value>value</arg_value>`` after the name, inside
``<tool_call>``, with or without line ends between the parts."""

from __future__ import annotations

import re
from collections.abc import Sequence

from trtspec.serve.tools.message import Call
from trtspec.serve.tools.parser import BlockParser, Schema, Schemas
from trtspec.serve.tools.structure import Grammar, tag
from trtspec.serve.tools.xml_text import XmlArguments

_BEGIN, _END = "<tool_call>", "</tool_call>"
_KEY, _KEY_END = "<arg_key>", "</arg_key>"
_VALUE, _VALUE_END = "<arg_value>", "</arg_value>"
_NAME = re.compile(rf"\s*([^\s<]+)\s*(?={_KEY}|{_END})")
_ARGUMENTS = XmlArguments(
    key=re.compile(rf"\s*{_KEY}\s*([^<\n]+?)\s*{_KEY_END}\s*{_VALUE}"),
    opening=f"{_KEY}{{}}{_KEY_END}\n{_VALUE}",
    value_end=_VALUE_END,
    block_end=_END,
)


class GlmParser(BlockParser):
    """Keys and values in separate tags."""

    name, others = "glm45", ("glm47", "glm4_moe")
    begin = _BEGIN
    marks = (_BEGIN, _END, _KEY, _KEY_END, _VALUE, _VALUE_END)
    signs = (_BEGIN, _KEY)
    separator = "\n"

    def block(
        self, text: str, start: int, is_whole: bool, tools: Schemas
    ) -> tuple[Sequence[Call], int] | None:
        head = _NAME.match(text, start)
        if head is None:
            ended = is_whole or text.find(_END, start) >= 0 or text.find(_KEY, start) >= 0
            return None if ended else ((), len(text))
        arguments, end = _ARGUMENTS.read(text, head.end(), is_whole, tools.get(head[1], {}))
        return [Call(head[1], arguments)], min(end + len(_END), len(text))

    def call(self, name: str, schema: Schema) -> Grammar:
        return tag(f"{_BEGIN}{name}\n", _ARGUMENTS.grammar(schema), _END)
