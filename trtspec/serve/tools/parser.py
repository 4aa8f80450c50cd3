"""ToolParser: how a family of models writes tool calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from trtspec.serve.tools.message import Call, Message, held
from trtspec.serve.tools.structure import Grammar, calls_of, tag, text_with

Schema = Mapping[str, Any]
Schemas = Mapping[str, Schema]
"""The tools of a request: the JSON schema of each tool's arguments, by the tool's name."""


class ToolParser(ABC):
    """Reads calls from texts, and describes their form for guided decoding.

    name: the value of `--tool-call-parser` (vLLM's name); others: alternative names. begin: the
    text that begins a call. marks: texts of the format; any that is a special token of the
    tokenizer is shown to `read`. signs: texts that the chat templates of such models all contain.
    separator, around: the text between calls, and before and after all of them.
    """

    name: ClassVar[str]
    others: ClassVar[tuple[str, ...]] = ()
    begin: ClassVar[str]
    marks: ClassVar[tuple[str, ...]]
    signs: ClassVar[tuple[str, ...]]
    separator: ClassVar[str] = ""
    around: ClassVar[tuple[str, str]] = ("", "")
    reads_reasoning: ClassVar[bool] = False
    """Whether `read` also finds the reasoning, and is therefore called even without tools."""

    arguments_as_text: ClassVar[bool] = False
    """Whether chat templates take the arguments of earlier calls as text rather than values."""

    @abstractmethod
    def read(self, text: str, is_whole: bool, tools: Schemas) -> Message:
        """The part of a partial text that is certain; is_whole: nothing follows.

        The result depends on the text alone, and extending a text only extends its messages, so
        what is sent does not depend on where a stream is cut.
        """

    @abstractmethod
    def call(self, name: str, schema: Schema) -> Grammar:
        """A tag for one call of a tool, with arguments that follow the schema.

        Raises:
            RequestError: the format cannot express what the schema asks for.
        """

    def required(self, tools: Schemas, many: bool) -> Grammar:
        """A call of one of the tools, or with ``many`` one or more."""
        calls = calls_of([self.call(*tool) for tool in tools.items()], self.separator, many)
        begin, end = self.around
        return tag(begin, calls, end) if begin else calls

    def optional(self, tools: Schemas) -> Grammar:
        """Free text in which any call follows its tool's schema."""
        if self.around[0]:
            return text_with(self.around[0], [self.required(tools, many=True)])
        return text_with(self.begin, [self.call(*tool) for tool in tools.items()])


class BlockParser(ToolParser):
    """Calls within a text, each after `begin`. dropped: text around calls that is not content."""

    dropped: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def block(
        self, text: str, start: int, is_whole: bool, tools: Schemas
    ) -> tuple[Sequence[Call], int] | None:
        """The calls after the mark that ends at ``start``, as far as they are certain, and where
        they end (the end of the text if incomplete). None if this is content rather than a call."""

    def read(self, text: str, is_whole: bool, tools: Schemas) -> Message:
        content, calls, position, searched = "", list[Call](), 0, 0
        while (begin := text.find(self.begin, searched)) >= 0:
            searched = begin + len(self.begin)
            found = self.block(text, searched, is_whole, tools)
            if found is not None:
                content += self._shown(text, position, begin, content).rstrip()
                calls += found[0]
                position = searched = found[1]
        end = len(text)
        if not is_whole:
            end -= held(text[position:], self.begin, *self.dropped)
        rest = self._shown(text, position, end, content)
        # White space around calls is no content; behind the last word a call may still come.
        if not is_whole or (position and not rest.strip()):
            rest = rest.rstrip()
        return Message(content=content + rest, calls=tuple(calls))

    def _shown(self, text: str, begin: int, end: int, before: str) -> str:
        """A stretch of the text to show; calls precede it unless it is the first."""
        stretch = text[begin:end]
        for mark in self.dropped:
            stretch = stretch.replace(mark, "")
        return stretch if before or not begin else stretch.lstrip()
