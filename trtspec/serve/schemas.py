"""Request bodies, checked by pydantic; the OpenAPI document is generated from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field, model_validator

from trtspec.config.sampling import MAX_LOGPROBS, MAX_SAMPLES, MAX_TEMPERATURE, SamplingParams
from trtspec.config.strict import Foreign
from trtspec.errors import RequestError
from trtspec.serve import unsupported
from trtspec.serve.body import (
    Body,
    Integer,
    JsonObject,
    Penalty,
    StopString,
    StopStrings,
    Text,
    Texts,
    TokenId,
    TokenKey,
    TokenLists,
    Tokens,
)
from trtspec.serve.messages import Messages, NamedTool, ToolChoice, Tools
from trtspec.serve.tools.reader import AnswerReader

MAX_CHAT_LOGPROBS = 20
TemplateKwargs = Annotated[JsonObject, Field(max_length=32)]


class StreamOptions(Body):
    """include_usage: a last chunk with the usage; continuous_usage_stats: one in every chunk."""

    foreign: ClassVar[Mapping[str, Foreign]] = unsupported.STREAM_OPTIONS

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Speculative(Body):
    """num_speculative_tokens: the depth of this request's drafts; 0 or null: none."""

    num_speculative_tokens: Annotated[Integer, Field(ge=0, lt=2**31)] | None


class JsonSchemaFormat(Body):
    """OpenAI's format: the answer follows the schema, whether `strict` or not."""

    name: str | None = None
    description: str | None = None
    schema_: Annotated[JsonObject | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(Body):
    """Constraints on the answer."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None
    structures: list[JsonObject] | None = None
    triggers: list[str] | None = None

    @model_validator(mode="after")
    def _has_what_its_type_needs(self) -> ResponseFormat:
        if self.type == "json_schema" and (
            self.json_schema is None or self.json_schema.schema_ is None
        ):
            raise ValueError("type=json_schema needs `json_schema` with a `schema`")
        if self.type == "structural_tag" and (self.structures is None or self.triggers is None):
            raise ValueError("type=structural_tag needs `structures` and `triggers`")
        return self

    @property
    def guided_decoding(self) -> dict[str, Any] | None:
        """The constraints for `SamplingParams`; None: any text."""
        if self.type == "json_schema":
            assert self.json_schema is not None
            return {"json": self.json_schema.schema_}
        if self.type == "structural_tag":
            tag = {"structures": self.structures, "triggers": self.triggers}
            return {"structural_tag": tag}
        return {"json_object": True} if self.type == "json_object" else None


class _Generation(Body):
    """Options of both endpoints: OpenAI's and those that vLLM adds. None: the default."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0.0, le=MAX_TEMPERATURE)] | None = None
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    top_k: Annotated[Integer, Field(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    n: Annotated[Integer, Field(ge=1, le=MAX_SAMPLES)] | None = None
    seed: Annotated[Integer, Field(ge=-(2**63), lt=2**64)] | None = None
    stop: StopString | StopStrings | None = None
    stop_token_ids: Annotated[list[TokenId], Field(fail_fast=True, max_length=256)] | None = None
    max_tokens: Annotated[Integer, Field(ge=1, lt=2**31)] | None = None
    min_tokens: Annotated[Integer, Field(ge=0, lt=2**31)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(ge=1e-6, le=1e6)] | None = None
    logit_bias: Annotated[dict[TokenKey, float], Field(max_length=1024)] | None = None
    bad_words: Annotated[list[StopString], Field(fail_fast=True, max_length=64)] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    priority: Annotated[Integer, Field(ge=-(2**63), lt=2**63)] | None = None
    user: str | None = None
    return_spec_tokens_details: bool | None = None
    return_spec_steps: bool | None = None
    speculative: Speculative | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: JsonObject | None = None
    guided_json: JsonObject | str | None = None
    guided_regex: str | None = None
    guided_choice: Annotated[list[str], Field(fail_fast=True, max_length=1024)] | None = None
    guided_grammar: str | None = None
    thinking_budget: Annotated[Integer, Field(ge=0, lt=2**31)] | None = None

    @model_validator(mode="after")
    def _only_streams_have_stream_options(self) -> _Generation:
        if self.stream_options is not None and not self.stream:
            raise ValueError("`stream_options` needs stream=true")
        return self

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        options = self.stream_options
        return bool(options and options.include_usage and options.continuous_usage_stats)

    @property
    def guided_decoding(self) -> dict[str, Any] | None:
        """The constraints from all fields together; `GuidedDecodingParams` refuses more than
        one."""
        asked = self.response_format.guided_decoding if self.response_format is not None else None
        structured = self.structured_outputs
        if asked and structured:
            raise RequestError(
                "`response_format` and `structured_outputs` differ; give one of them"
            )
        given = asked is not None or structured is not None  # {} too: it is then refused by name
        asked = {**(asked or {}), **(structured or {})}
        for kind in ("json", "regex", "choice", "grammar"):
            value = getattr(self, f"guided_{kind}")
            if value is not None:
                asked[f"guided_{kind}"] = value
        return asked if asked or given else None

    def sampling(self, **others: Any) -> SamplingParams:
        """The sampling options; RequestError for a value that cannot be honoured."""
        names = (
            "temperature", "top_p", "top_k", "min_p", "n", "seed", "stop", "stop_token_ids",
            "max_tokens", "min_tokens", "presence_penalty", "frequency_penalty",
            "repetition_penalty", "logit_bias", "bad_words", "ignore_eos",
            "include_stop_str_in_output", "skip_special_tokens", "guided_decoding",
            "thinking_budget", "return_spec_steps",
        )  # fmt: skip
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if self.speculative is not None:
            given["speculative"] = self.speculative.model_dump()
        return SamplingParams.from_dict({"temperature": 1.0, **given, **others})


class CompletionRequest(_Generation):
    """Body of /v1/completions."""

    foreign: ClassVar[Mapping[str, Foreign]] = unsupported.COMPLETION

    prompt: Text | Texts | Tokens | TokenLists
    logprobs: Annotated[Integer, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: bool | None = None

    @model_validator(mode="after")
    def _only_whole_answers_repeat_the_prompt(self) -> CompletionRequest:
        if self.echo and self.stream:
            raise ValueError("`echo` repeats the prompt in whole answers only; leave `stream` out")
        return self

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """The prompts, one or more; a list of numbers is one prompt."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return self.prompt

    def params(self) -> SamplingParams:
        tokens = 16 if self.max_tokens is None else self.max_tokens  # OpenAI's default
        of_prompt = self.logprobs if self.echo else None
        return self.sampling(max_tokens=tokens, logprobs=self.logprobs, prompt_logprobs=of_prompt)


class ChatRequest(_Generation):
    """Body of /v1/chat/completions."""

    foreign: ClassVar[Mapping[str, Foreign]] = unsupported.CHAT

    messages: Messages
    max_completion_tokens: Annotated[Integer, Field(ge=1, lt=2**31)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[Integer, Field(ge=0, le=MAX_CHAT_LOGPROBS)] | None = None
    safety_identifier: str | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateKwargs | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None

    @property
    def offered(self) -> Tools:
        """The tools that the model may call."""
        return [] if self.tool_choice == "none" else self.tools or []

    def template_options(self) -> dict[str, Any]:
        """The options as `LLM.chat` takes them."""
        names = ("chat_template_kwargs", "add_generation_prompt", "continue_final_message")
        tools = [tool.model_dump(exclude_none=True) for tool in self.offered]
        return {"tools": tools, **{name: getattr(self, name) for name in names}}

    @model_validator(mode="after")
    def _agree(self) -> ChatRequest:
        names = [tool.function.name for tool in self.tools or ()]
        if len(set(names)) < len(names):
            raise ValueError("`tools`: two have one name; give each its own")
        asked = self.tool_choice
        if isinstance(asked, NamedTool) and asked.function.name not in names:
            raise ValueError(
                f"`tool_choice` names {asked.function.name!r}, but `tools` has "
                f"{', '.join(names)[:200] or 'none'}"
            )
        if asked == "required" and not names:
            raise ValueError("`tool_choice`='required' needs `tools`")
        if self.top_logprobs and not self.logprobs:
            raise ValueError("`top_logprobs` needs logprobs=true")
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            raise ValueError("`max_tokens` and `max_completion_tokens` differ; give one of them")
        return self

    def params(self, reader: AnswerReader, shows_special: bool) -> SamplingParams:
        """Without a limit the answer may fill the model's length. ``shows_special``: ``reader``
        needs special tokens in the text."""
        limit = self.max_completion_tokens if self.max_tokens is None else self.max_tokens
        asked = self.tool_choice or "auto"
        choice = asked.function.name if isinstance(asked, NamedTool) else asked
        is_strict = any(tool.function.strict for tool in self.offered)
        others: dict[str, Any] = {"skip_special_tokens": False} if shows_special else {}
        return self.sampling(
            max_tokens=limit,
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            guided_decoding=reader.form(choice, is_strict, self.guided_decoding),
            **others,
        )


class ErrorDetails(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    """Any answer with a status of 400 or above."""

    error: ErrorDetails
