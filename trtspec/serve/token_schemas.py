"""The bodies of /tokenize and /detokenize, as vLLM has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator

from trtspec.config.strict import Foreign
from trtspec.serve.body import Body, Tokens
from trtspec.serve.messages import Messages, Tools
from trtspec.serve.schemas import TemplateKwargs
from trtspec.serve.unsupported import TOKENIZE

_OF_TEMPLATES = ("chat_template_kwargs", "add_generation_prompt", "continue_final_message")


class TokenizeRequest(Body):
    """A text, or a conversation."""

    foreign: ClassVar[Mapping[str, Foreign]] = TOKENIZE

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None
    messages: Messages | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateKwargs | None = None
    tools: Tools | None = None
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give one of `prompt` and `messages`")
        if self.messages is not None and self.add_special_tokens:
            raise ValueError("`add_special_tokens` is of a `prompt`: templates write their own")
        for name in ("tools", *_OF_TEMPLATES):
            if self.messages is None and getattr(self, name):
                raise ValueError(f"`{name}` needs `messages`")
        return self

    def template_options(self) -> dict[str, Any]:
        """As `LLM.chat` takes them."""
        tools = [tool.model_dump(exclude_none=True) for tool in self.tools or ()]
        return {"tools": tools, **{name: getattr(self, name) for name in _OF_TEMPLATES}}


class DetokenizeRequest(Body):
    """Token ids."""

    model: str | None = None
    tokens: Annotated[Tokens, Field(max_length=2**20)]
