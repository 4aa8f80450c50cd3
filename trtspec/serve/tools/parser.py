"""ToolParser: how a family of models writes tool calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from trtspec.serve.tools.message import Call, Message, held
from trtspec.serve.tools.structure import Grammar, calls_of, tag, text_with

Schema = Mapping[str, Any]
Schemas = Mapping[str, Schema]
"""The tools of a request: the JSON schema of a tool's arguments by its name."""


class ToolParser(ABC):
    """Reads calls out of texts, and says what they look like to who must write some.

    name: as `--tool-call-parser` has it (vLLM's name); others: further spellings.
    begin: what a call begins with. marks: texts of the format; where one of them is a special token
    of the tokenizer, special tokens are shown to `read`.
    signs: texts that the chat templates of such models hold, all of them.
    separator, around: what stands between calls, and before and behind all of them.
    """

    name: ClassVar[str]
    others: ClassVar[tuple[str, ...]] = ()
    begin: ClassVar[str]
    marks: ClassVar[tuple[str, ...]]
    signs: ClassVar[tuple[str, ...]]
    separator: ClassVar[str] = ""
    around: ClassVar[tuple[str, str]] = ("", "")
    reads_reasoning: ClassVar[bool] = False
    """`read` finds the reasoning too, and is asked where no tools are given as well."""

    arguments_as_text: ClassVar[bool] = False
    """What the chat templates take in earlier calls; else values."""

    @abstractmethod
    def read(self, text: str, is_whole: bool, tools: Schemas) -> Message:
        """What of a text so far is certain; is_whole: nothing follows.

        A function of the text alone, and of two texts of which one begins with the other so do the
        messages: what is sent does not depend on where a stream is cut.
        """

    @abstractmethod
    def call(self, name: str, schema: Schema) -> Grammar:
        """A tag: one call of a tool, whose arguments keep to the schema.

        Raises:
            RequestError: the format cannot write what the schema asks for.
        """

    def required(self, tools: Schemas, many: bool) -> Grammar:
        """A call of one of the tools, or ``many``: one or several of them."""
        calls = calls_of([self.call(*tool) for tool in tools.items()], self.separator, many)
        begin, end = self.around
        return tag(begin, calls, end) if begin else calls

    def optional(self, tools: Schemas) -> Grammar:
        """Free text, in which a call that begins keeps to a tool's schema."""
        if self.around[0]:
            return text_with(self.around[0], [self.required(tools, many=True)])
        return text_with(self.begin, [self.call(*tool) for tool in tools.items()])


class BlockParser(ToolParser):
    """Calls that stand in a text, each behind `begin`. dropped: what stands around calls, and is no
    content."""

    dropped: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def block(
        self, text: str, start: int, is_whole: bool, tools: Schemas
    ) -> tuple[Sequence[Call], int] | None:
        """The calls that begin at ``start``, behind the mark, as far as they are certain, and where
        they end (the text's end, while they do not). None: this is no call, but content."""

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
        """A stretch of the text, which calls stand before if it is not the first."""
        stretch = text[begin:end]
        for mark in self.dropped:
            stretch = stretch.replace(mark, "")
        return stretch if before or not begin else stretch.lstrip()
