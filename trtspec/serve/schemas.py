"""The bodies of requests, checked by pydantic; the server's OpenAPI document is made from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from trtspec.config.sampling import MAX_LOGPROBS, MAX_SAMPLES, MAX_TEMPERATURE, SamplingParams
from trtspec.config.strict import Foreign
from trtspec.errors import RequestError
from trtspec.llmapi.chat import TEXT_PARTS
from trtspec.serve import unsupported

Text = Annotated[str, Field(min_length=1)]
# fail_fast: one error a list, or a long list of wrong items would become a longer one of errors.
Texts = Annotated[list[Text], Field(fail_fast=True, min_length=1, max_length=1024)]


def _whole(value: Any) -> Any:
    """JSON knows one kind of number: 5.0 is an integer too."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Integer = Annotated[int, BeforeValidator(_whole)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
TokenKey = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]
Penalty = Annotated[float, Field(ge=-2.0, le=2.0)]
Tokens = Annotated[list[TokenId], Field(fail_fast=True, min_length=1)]
TokenLists = Annotated[list[Tokens], Field(fail_fast=True, min_length=1, max_length=1024)]
# Every stop string is looked for after every token.
StopString = Annotated[str, Field(min_length=1, max_length=256)]
StopStrings = Annotated[list[StopString], Field(fail_fast=True, max_length=16)]
MAX_CHAT_LOGPROBS = 20
TemplateKwargs = Annotated[dict[str, Any], Field(max_length=32)]


class _Body(BaseModel):
    """Types are strict and every field is named; see `unsupported` for the others."""

    model_config = ConfigDict(extra="forbid", strict=True)
    foreign: ClassVar[Mapping[str, Foreign]] = {}

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, data: Any) -> Any:
        known = {field.alias or name: field for name, field in cls.model_fields.items()}
        return unsupported.without_unsupported(data, known, cls.foreign)


class StreamOptions(_Body):
    """include_usage: a last chunk with the usage; continuous_usage_stats: one in every chunk."""

    foreign: ClassVar[Mapping[str, Foreign]] = unsupported.STREAM_OPTIONS

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Speculative(_Body):
    """num_speculative_tokens: the depth of this request's drafts; 0 or null: none."""

    num_speculative_tokens: Annotated[Integer, Field(ge=0, lt=2**31)] | None


class JsonSchemaFormat(_Body):
    """OpenAI's: `strict` or not, the answer keeps to the schema."""

    name: str | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(_Body):
    """What the answer looks like."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None
    structures: list[dict[str, Any]] | None = None
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
        """As `SamplingParams` takes it; None: any text."""
        if self.type == "json_schema":
            assert self.json_schema is not None
            return {"json": self.json_schema.schema_}
        if self.type == "structural_tag":
            tag = {"structures": self.structures, "triggers": self.triggers}
            return {"structural_tag": tag}
        return {"json_object": True} if self.type == "json_object" else None


class _Generation(_Body):
    """What both endpoints know: OpenAI's options and those that vLLM adds. None: the default."""

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
    speculative: Speculative | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | None = None
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
        """What the fields for it ask for together; `GuidedDecodingParams` refuses more than one."""
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
            "thinking_budget",
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

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """The prompts, one or more; numbers are one prompt."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return self.prompt

    def params(self) -> SamplingParams:
        tokens = 16 if self.max_tokens is None else self.max_tokens  # OpenAI's default
        return self.sampling(max_tokens=tokens, logprobs=self.logprobs)


class TextPart(_Body):
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


class Message(_Body):
    """One turn of a conversation. Whose content may be null, `LLM.chat` says."""

    foreign: ClassVar[Mapping[str, Foreign]] = unsupported.MESSAGE

    role: str  # `check_conversation` knows which there are: the template may name others
    content: str | Annotated[list[TextPart], Field(fail_fast=True, max_length=1024)] | None
    name: str | None = None

    @property
    def text(self) -> str:
        """All of its text."""
        content = self.content or ""
        return content if isinstance(content, str) else "".join(part.text for part in content)

    def to_turn(self) -> dict[str, Any]:
        """As `LLM.chat` takes it."""
        return {"content": None, **self.model_dump(exclude_none=True)}


class ChatRequest(_Generation):
    """Body of /v1/chat/completions."""

    foreign: ClassVar[Mapping[str, Foreign]] = unsupported.CHAT

    messages: Annotated[list[Message], Field(fail_fast=True, min_length=1, max_length=4096)]
    max_completion_tokens: Annotated[Integer, Field(ge=1, lt=2**31)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[Integer, Field(ge=0, le=MAX_CHAT_LOGPROBS)] | None = None
    safety_identifier: str | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateKwargs | None = None

    def template_options(self) -> dict[str, Any]:
        """As `LLM.chat` takes them."""
        names = ("chat_template_kwargs", "add_generation_prompt", "continue_final_message")
        return {name: getattr(self, name) for name in names}

    @model_validator(mode="after")
    def _agree(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("`top_logprobs` needs logprobs=true")
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            raise ValueError("`max_tokens` and `max_completion_tokens` differ; give one of them")
        return self

    def params(self) -> SamplingParams:
        """Without a limit the answer may fill the model's length."""
        limit = self.max_completion_tokens if self.max_tokens is None else self.max_tokens
        return self.sampling(
            max_tokens=limit, logprobs=(self.top_logprobs or 0) if self.logprobs else None
        )


class ErrorDetails(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    """Every answer from 400 on."""

    error: ErrorDetails
