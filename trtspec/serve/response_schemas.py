"""The body of /v1/responses, checked by pydantic and brought into the form of a chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from fastapi.exceptions import RequestValidationError
from pydantic import Discriminator, Field, Tag, ValidationError, model_validator

from trtspec.config.strict import Foreign
from trtspec.serve.body import Body, Integer, JsonObject, StopString, StopStrings
from trtspec.serve.messages import MAX_TOOLS, TextPart, ToolName
from trtspec.serve.schemas import ChatRequest, Speculative, TemplateKwargs
from trtspec.serve.unsupported import RESPONSE, RESPONSE_ITEM


class FlatTool(Body):
    """A function, as this API writes it."""

    type: Literal["function"]
    name: ToolName
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None

    def nested(self) -> dict[str, Any]:
        """As a chat has it."""
        return {"type": "function", "function": self.model_dump(exclude={"type"})}


class FlatToolName(Body):
    """Which function is to be called."""

    type: Literal["function"]
    name: ToolName


class TextFormat(Body):
    """What the text looks like."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: Annotated[JsonObject | None, Field(alias="schema")] = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _has_what_its_type_needs(self) -> TextFormat:
        if (self.type == "json_schema") != (self.schema_ is not None):
            raise ValueError("type=json_schema needs a `schema`, and no other type has one")
        return self

    def nested(self) -> dict[str, Any]:
        """As a chat has it."""
        if self.type != "json_schema":
            return {"type": self.type}
        named = self.model_dump(exclude={"type"}, by_alias=True)
        return {"type": self.type, "json_schema": named}


class TextOptions(Body):
    """Options of the text."""

    foreign: ClassVar[Mapping[str, Foreign]] = {"verbosity": RESPONSE["verbosity"]}

    format: TextFormat | None = None


class _Item(Body):
    foreign: ClassVar[Mapping[str, Foreign]] = RESPONSE_ITEM

    id: str | None = None
    status: str | None = None


class MessageItem(_Item):
    """What was said."""

    type: Literal["message"] = "message"
    role: str
    content: str | list[TextPart]

    def to_turn(self) -> dict[str, Any]:
        """A message of a chat."""
        return {"role": self.role, **self.model_dump(include={"content"})}


class CallItem(_Item):
    """A call by the assistant."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str

    def to_turn(self) -> dict[str, Any]:
        """Part of an assistant's message of a chat."""
        function = {"name": self.name, "arguments": self.arguments}
        call = {"id": self.call_id, "type": "function", "function": function}
        return {"role": "assistant", "tool_calls": [call]}


class OutputItem(_Item):
    """What a tool said."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | list[TextPart]

    def to_turn(self) -> dict[str, Any]:
        """A message of a chat."""
        said = self.output if isinstance(self.output, str) else _joined(self.output)
        return {"role": "tool", "tool_call_id": self.call_id, "content": said}


class ThoughtPart(Body):
    """A piece of reasoning or of its summary."""

    type: Literal["reasoning_text", "summary_text"]
    text: str


class ReasoningItem(_Item):
    """What the assistant thought; without its text, the summary of it."""

    type: Literal["reasoning"]
    summary: list[ThoughtPart] | None = None
    content: list[ThoughtPart] | None = None

    def to_turn(self) -> dict[str, Any]:
        """Part of an assistant's message of a chat."""
        thought = _joined(self.content or self.summary or [])
        return {"role": "assistant", "reasoning_content": thought}


def _joined(parts: Sequence[TextPart | ThoughtPart]) -> str:
    return "".join(part.text for part in parts)


_KINDS = ("message", "function_call", "function_call_output", "reasoning")


def _tag(item: Any) -> str | None:
    """The branch of `InputItem`; no identifier, as such would be shown in an error's place."""
    kind = item.get("type", "message") if isinstance(item, Mapping) else None
    return f"-{kind}" if kind in _KINDS else None


InputItem = Annotated[
    Annotated[MessageItem, Tag("-message")]
    | Annotated[CallItem, Tag("-function_call")]
    | Annotated[OutputItem, Tag("-function_call_output")]
    | Annotated[ReasoningItem, Tag("-reasoning")],
    Discriminator(
        _tag,
        custom_error_type="item",
        custom_error_message=f"an item is an object whose `type` is one of {', '.join(_KINDS)}",
    ),
]
"""A part of the conversation so far."""


class ResponsesRequest(Body):
    """Body of /v1/responses."""

    foreign: ClassVar[Mapping[str, Foreign]] = RESPONSE

    input: str | Annotated[list[InputItem], Field(fail_fast=True, min_length=1, max_length=4096)]
    model: str | None = None
    instructions: str | None = None
    stream: bool | None = None
    max_output_tokens: Annotated[Integer, Field(ge=1, lt=2**31)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    tools: Annotated[list[FlatTool], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | FlatToolName | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: StopString | StopStrings | None = None
    priority: int | None = None
    chat_template_kwargs: TemplateKwargs | None = None
    include_reasoning: bool | None = None
    thinking_budget: int | None = None
    return_spec_tokens_details: bool | None = None
    speculative: Speculative | None = None

    def to_chat(self) -> ChatRequest:
        """The same request as a chat.

        Raises:
            RequestValidationError: a value is out of range, or a message is none.
        """
        same = (
            "model", "stream", "temperature", "top_p", "parallel_tool_calls", "user", "top_k",
            "min_p", "seed", "stop", "priority", "chat_template_kwargs", "include_reasoning",
            "thinking_budget", "safety_identifier", "return_spec_tokens_details",
        )  # fmt: skip
        body = {name: getattr(self, name) for name in same if getattr(self, name) is not None}
        body["messages"] = self._turns()
        if self.max_output_tokens is not None:
            body["max_completion_tokens"] = self.max_output_tokens
        if self.tools:
            body["tools"] = [tool.nested() for tool in self.tools]
        choice = self.tool_choice
        if isinstance(choice, FlatToolName):
            body["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
        elif choice is not None:
            body["tool_choice"] = choice
        if self.text is not None and self.text.format is not None:
            body["response_format"] = self.text.format.nested()
        if self.speculative is not None:
            body["speculative"] = self.speculative.model_dump()
        try:
            return ChatRequest.model_validate(body)
        except ValidationError as error:
            raise RequestValidationError(error.errors()) from None

    def repeated(self) -> dict[str, Any]:
        """What an answer says of its request."""
        names = ("instructions", "max_output_tokens", "temperature", "top_p", "user", "metadata")
        said = {name: getattr(self, name) for name in names}
        form = self.text.format if self.text is not None else None
        told = {"type": "text"} if form is None else form.model_dump(by_alias=True)
        choice = self.tool_choice
        return {
            **said,
            "metadata": self.metadata or {},
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "tools": [tool.model_dump() for tool in self.tools or ()],
            "tool_choice": choice.model_dump() if isinstance(choice, Body) else choice or "auto",
            "text": {"format": told},
            "reasoning": {"effort": None, "summary": None},
            "previous_response_id": None,
            "store": False,
            "truncation": "disabled",
        }

    def _turns(self) -> list[dict[str, Any]]:
        """The conversation; what an assistant did in a row is one turn."""
        turns: list[dict[str, Any]] = []
        if self.instructions:
            turns.append({"role": "system", "content": self.instructions})
        if isinstance(self.input, str):
            return [*turns, {"role": "user", "content": self.input}]
        for turn in (item.to_turn() for item in self.input):
            last = turns[-1] if turns else {}
            if turn["role"] != "assistant" or last.get("role") != "assistant":
                turns.append(turn)
            elif "tool_calls" in turn and "tool_calls" in last:
                last["tool_calls"] = [*last["tool_calls"], *turn["tool_calls"]]
            elif last.keys() & turn.keys() == {"role"}:
                last.update(turn)
            else:
                turns.append(turn)
        for turn in turns:
            if turn["role"] == "assistant" and not turn.get("tool_calls"):
                turn.setdefault("content", "")
        return turns
