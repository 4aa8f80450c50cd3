"""The messages and tools of a conversation, checked by pydantic."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from trtspec.config.strict import Foreign
from trtspec.errors import RequestError
from trtspec.llmapi.chat import TEXT_PARTS
from trtspec.serve import unsupported
from trtspec.serve.body import Body, JsonObject

MAX_TOOLS = 128
"""OpenAI's limit."""
ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


class Function(Body):
    """A function that the model may call. strict: its arguments keep to the schema."""

    name: ToolName
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class Tool(Body):
    """A tool of a request."""

    type: Literal["function"]
    function: Function


class NamedFunction(Body):
    """Which function is to be called."""

    name: ToolName


class NamedTool(Body):
    """Which tool is to be called."""

    type: Literal["function"]
    function: NamedFunction


Tools = Annotated[list[Tool], Field(fail_fast=True, max_length=MAX_TOOLS)]
ToolChoice = Literal["none", "auto", "required"] | NamedTool


class CalledFunction(Body):
    """A function that was called; its arguments are the text of a JSON object."""

    name: ToolName
    arguments: str


class ToolCall(Body):
    """A call in an earlier answer."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None

    def to_turn(self, as_text: bool) -> dict[str, Any]:
        """As the chat template reads it: with the arguments as values, or ``as_text``."""
        arguments = _read(self.function)
        given = json.dumps(arguments, ensure_ascii=False) if as_text else arguments
        call = {"type": self.type, "function": {"name": self.function.name, "arguments": given}}
        return call if self.id is None else {"id": self.id, **call}


def _read(called: CalledFunction) -> dict[str, Any]:
    try:
        value = json.loads(called.arguments or "{}")
    except (ValueError, RecursionError) as error:
        raise RequestError(
            f"messages: the arguments of `{called.name}` are no JSON: {error!s:.120}"
        ) from None
    if not isinstance(value, dict):
        raise RequestError(
            f"messages: the arguments of `{called.name}` are {called.arguments!r:.40}; they must "
            "be a JSON object"
        )
    return value


class TextPart(Body):
    """A piece of a message's content."""

    foreign: ClassVar[Mapping[str, Foreign]] = unsupported.PART

    type: Literal["text", "input_text", "output_text"]
    text: str

    @model_validator(mode="before")
    @classmethod
    def _only_text(cls, data: Any) -> Any:
        kind = data.get("type") if isinstance(data, Mapping) else None
        if isinstance(kind, str) and kind not in TEXT_PARTS:
            raise ValueError(f"a part of type {kind[:32]!r} is refused: only text is offered")
        return data


class Message(Body):
    """One turn of a conversation. Whose content may be null, `LLM.chat` says."""

    foreign: ClassVar[Mapping[str, Foreign]] = unsupported.MESSAGE

    role: str  # `check_conversation` knows which there are: the template may name others
    content: str | Annotated[list[TextPart], Field(fail_fast=True, max_length=1024)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True, max_length=1024)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None

    @property
    def text(self) -> str:
        """All of its text."""
        content = self.content or ""
        if not isinstance(content, str):
            content = "".join(part.text for part in content)
        called = "".join(call.function.arguments for call in self.tool_calls or ())
        return content + (self.reasoning_content or self.reasoning or "") + called

    def to_turn(self, as_text: bool = False) -> dict[str, Any]:
        """As `LLM.chat` takes it. ``as_text``: see `ToolCall.to_turn`."""
        given = self.model_dump(exclude_none=True, exclude={"tool_calls", "reasoning"})
        if self.tool_calls:
            given["tool_calls"] = [call.to_turn(as_text) for call in self.tool_calls]
        if self.reasoning:
            given.setdefault("reasoning_content", self.reasoning)
        lacks_it = "content" not in self.model_fields_set and not self.tool_calls
        return given if lacks_it else {"content": None, **given}


Messages = Annotated[list[Message], Field(fail_fast=True, min_length=1, max_length=4096)]
