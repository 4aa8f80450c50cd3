"""gpt-oss (harmony): ``<|channel|>name<|message|>text<|end|>``. Channel `analysis` is reasoning and
`final` is content; `commentary` is a tool call if it names a tool (``to=functions.name``)."""

from __future__ import annotations

import re

from trtspec.serve.tools.message import Call, Message, held
from trtspec.serve.tools.parser import Schema, Schemas, ToolParser
from trtspec.serve.tools.structure import (
    ANY_TEXT,
    Grammar,
    in_order,
    json_of,
    maybe,
    tag,
    text_with,
)

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_NEXT = re.compile("|".join(map(re.escape, (*_ENDS, _START, _CHANNEL))))
_NAME = re.compile(rf"{re.escape(_CHANNEL)}\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([\w.-]+)")
_ANALYSIS = f"{_CHANNEL}analysis{_MESSAGE}"


class HarmonyParser(ToolParser):
    """Channels."""

    name, others = "openai", ("harmony", "gpt_oss")
    begin = _CHANNEL
    marks = (_START, _CHANNEL, _MESSAGE, "<|constrain|>", *_ENDS)
    signs = (_CHANNEL, _MESSAGE)
    reads_reasoning = True

    def read(self, text: str, is_whole: bool, tools: Schemas) -> Message:
        reasoning: list[str] = []
        content: list[str] = []
        calls: list[Call] = []
        position = 0
        while position < len(text):
            if not is_whole and any(m.startswith(text[position:]) for m in (_START, _CHANNEL)):
                break
            header, start = "", position
            if text.startswith((_START, _CHANNEL), position):
                header, mark, _ = text[position:].partition(_MESSAGE)
                start += len(header) + len(mark)
                if not mark:
                    break  # nothing of it was said yet
            end = _NEXT.search(text, start)
            body = text[start : len(text) if end is None else end.start()]
            if end is None and not is_whole:
                body = body[: len(body) - held(body, *_ENDS, _START, _CHANNEL)]
            channel, recipient = _NAME.search(header), _RECIPIENT.search(header)
            if recipient is not None:
                calls.append(Call(recipient[1].removeprefix("functions."), body.rstrip()))
            elif channel is not None and channel[1] == "analysis":
                reasoning.append(body)
            else:
                content.append(body)
            if end is None:
                break
            position = end.end() if end[0] in _ENDS else end.start()
        return Message("\n".join(reasoning), "\n".join(content), tuple(calls))

    def call(self, name: str, schema: Schema) -> Grammar:
        # The end of the call ends the answer: it is one of the model's own ends.
        head = f"{_CHANNEL}commentary to=functions.{name} <|constrain|>json{_MESSAGE}"
        return tag(head, json_of(schema), "")

    def required(self, tools: Schemas, many: bool) -> Grammar:
        thought = tag(_ANALYSIS, ANY_TEXT, f"{_ENDS[0]}{_START}assistant")
        return in_order(maybe(thought), super().required(tools, False))

    def optional(self, tools: Schemas) -> Grammar:
        return text_with(f"{_CHANNEL}commentary to=", [self.call(*t) for t in tools.items()])
