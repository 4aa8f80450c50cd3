"""AnswerReader: turns the texts of one request into messages, and says what form they must have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trtspec.errors import RequestError
from trtspec.serve.tools.message import Message
from trtspec.serve.tools.parser import Schemas, ToolParser
from trtspec.serve.tools.reasoning import ReasoningParser
from trtspec.serve.tools.structure import (
    ANY_TEXT,
    Grammar,
    in_order,
    json_of,
    matching,
    maybe,
    one_of,
    tag,
)

_OBJECT: Mapping[str, Any] = {"type": "object"}


@dataclass(frozen=True)
class AnswerReader:
    """tools: the schemas of the tools that may be called. many: an answer may hold several calls.
    shows_reasoning: whether messages include the reasoning."""

    parser: ToolParser | None
    reasoning: ReasoningParser | None
    tools: Schemas = field(default_factory=dict)
    many: bool = True
    shows_reasoning: bool = True

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that `read` must see even if they are special tokens."""
        marks = () if self.reasoning is None else (self.reasoning.start, self.reasoning.end)
        return marks if self._parser is None else (*marks, *self._parser.marks)

    @property
    def _parser(self) -> ToolParser | None:
        used = self.parser is not None and (self.tools or self.parser.reads_reasoning)
        return self.parser if used else None

    def read(self, text: str, is_open: bool, is_whole: bool) -> Message:
        """The part of an answer that is certain. ``is_open``: the prompt ends inside reasoning;
        ``is_whole``: nothing follows."""
        thought, rest = "", text
        if self.reasoning is not None:
            thought, rest, has_begun = self.reasoning.split(text, is_open, is_whole)
            is_whole = is_whole or not has_begun
        message = Message(content=rest)
        if self._parser is not None:
            message = self._parser.read(rest, is_whole, self.tools)
        thought = thought or message.reasoning
        calls = message.calls if self.many else message.calls[:1]
        return replace(message, reasoning=thought if self.shows_reasoning else "", calls=calls)

    def form(
        self, choice: str, is_strict: bool, asked: Mapping[str, Any] | None
    ) -> Mapping[str, Any] | None:
        """`guided_decoding` for an answer, or None for free text. ``choice``: "auto", "required",
        or a tool's name. ``is_strict``: calls follow their schema even if none is required.
        ``asked``: the form that the request itself asks for.

        Raises:
            RequestError: both a call and another form are required.
        """
        if self.parser is None or not self.tools:
            if choice not in ("auto", "none"):
                raise RequestError(
                    f"`tool_choice`={choice!r} asks for a call, but the server reads none "
                    "(--tool-call-parser none)"
                )
            return asked
        if choice == "auto":
            if asked is None:
                return self._structured(self.parser.optional(self.tools)) if is_strict else None
            schema = _OBJECT if asked.get("json_object") else asked.get("json")
            if len(asked) > 1 or not isinstance(schema, Mapping):
                return asked
            calls = self.parser.required(self.tools, self.many)
            return self._structured(one_of(json_of(schema), calls))
        if asked is not None:
            raise RequestError(
                f"`tool_choice`={choice!r} asks for a call, and the request for another form too; "
                "give one of them"
            )
        tools = self.tools if choice == "required" else {choice: self.tools[choice]}
        many = self.many and choice == "required"
        return self._structured(self.parser.required(tools, many))

    def _structured(self, answer: Grammar) -> Mapping[str, Any]:
        if self.reasoning is not None:
            thought = tag(self.reasoning.start, ANY_TEXT, self.reasoning.end)
            # Where the prompt has opened the reasoning, the form begins behind its end.
            answer = in_order(maybe(thought), matching(r"\s{0,4}"), answer)
        return {"structural_tag": {"type": "structural_tag", "format": answer}}
