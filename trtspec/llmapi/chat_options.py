"""ChatOptions: what a call of `LLM.chat` may ask of the chat template."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2.defaults import DEFAULT_NAMESPACE

from trtspec.config.sampling import SamplingParams
from trtspec.config.strict import Foreign, key_rules, nearest, strict_config
from trtspec.errors import RequestError
from trtspec.llmapi.chat_template import ChatTemplate
from trtspec.llmapi.options import LLMConfig
from trtspec.log import logger

_TEXT = "only text is offered"
_MAX_DEPTH = 32


def _names_of(options: type) -> set[str]:
    rules = key_rules(options)
    return {*(f.name for f in fields(options)), *rules.aliases, *rules.foreign}


def _elsewhere(options: type, remedy: str) -> dict[str, Foreign]:
    """The options of another class, all refused here."""
    return {name: Foreign(remedy.format(name), ()) for name in _names_of(options)}


_FOREIGN: dict[str, Foreign] = {
    **_elsewhere(LLMConfig, "it is an option of the engine; write LLM(model, {}=...)"),
    **_elsewhere(
        SamplingParams,
        "it is a sampling option; write chat(messages, SamplingParams({}=...))",
    ),
    "speculative_config": Foreign("it belongs to the engine; write LLM(model, {...})", ()),
    "max_completion_tokens": Foreign("write chat(messages, SamplingParams(max_tokens=...))", ()),
    "chat_template_content_format": Foreign("the template says it", (None, "auto")),
    "mm_processor_kwargs": Foreign(_TEXT, (None, {})),
    "tokenization_kwargs": Foreign("the template writes special tokens itself", (None, {})),
    "tokenize": Foreign("the prompt is always tokens; call llm.tokenizer for a text", (None, True)),
}
_BESIDE = ("sampling_params", "use_tqdm", "priority")  # parameters of `LLM.chat` itself
# Of those who render a template (transformers' functions and jinja2's), beside the parameters of
# the tokenizer's `apply_chat_template` and what jinja2 defines in every template.
_OF_RENDERERS = {
    "self", "messages", "conversation", "conversations", "tools", "documents", "chat_template",
    "add_generation_prompt", "continue_final_message", "tokenize", "return_assistant_tokens_mask",
    "return_dict", "loop", "super", "caller", "varargs", "kwargs", "raise_exception",
    "strftime_now", "chat_template_kwargs", *DEFAULT_NAMESPACE,
}  # fmt: skip


@strict_config(foreign=_FOREIGN, none_means_default=True, error=RequestError)
@dataclass(frozen=True)
class ChatOptions:
    """Options of `LLM.chat` and `LLM.chat_prompt`, besides the template's own variables.

    chat_template: the name of one of the tokenizer's templates, a file that holds one, or the
    template itself; by default the tokenizer's ("tool_use", if it exists and tools are given).
    chat_template_kwargs: variables of the template. A variable that the template never reads has no
    effect (clients send some to every model) and is logged; one that looks like a misspelt variable
    of the template is refused. tools: functions that may be called, as JSON schemas or documented
    Python functions. documents: texts with titles to draw on. Tools and documents are refused if
    the template reads none. add_generation_prompt: end the prompt with the header of an answer (the
    default, unless the last message is continued). continue_final_message: let the model continue
    the last message, or the field of it that is named.
    """

    chat_template: str | Path | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    tools: tuple[Any, ...] = ()
    documents: tuple[Mapping[str, Any], ...] = ()
    add_generation_prompt: bool | None = None
    continue_final_message: bool | str = False

    def __post_init__(self) -> None:
        for place, values in (("tools", self.tools), ("documents", self.documents)):
            for index, value in enumerate(values):
                if not (isinstance(value, Mapping) or (place == "tools" and callable(value))):
                    raise RequestError(
                        f"{place}[{index}] is {type(value).__name__} {value!r:.60}; a tool is a "
                        "JSON schema or a documented function"
                    )
                if isinstance(value, Mapping):
                    check_plain(value, f"{place}[{index}]")
        for name, value in self.chat_template_kwargs.items():
            if name in _OF_RENDERERS or not name.isidentifier():
                raise _no_variable(name)
            check_plain(value, f"chat_template_kwargs.{name}")

    def check_against(self, template: ChatTemplate) -> None:
        """Raise RequestError for options that have no effect on the template."""
        for name in ("tools", "documents"):
            if getattr(self, name) and name not in template.variables:
                raise RequestError(
                    f"{name}: the chat template reads none, so the model would never see them; "
                    "give another chat_template, or write them into the messages"
                )

    def arguments(self, tokenizer: Any, template: ChatTemplate) -> dict[str, Any]:
        """The arguments for the tokenizer's `apply_chat_template`."""
        own = inspect.signature(tokenizer.apply_chat_template).parameters
        for name in self.chat_template_kwargs:
            if name in own:
                raise _no_variable(name)
            if name not in template.variables:
                _check_unread(name, template.variables)
        prompt = self.add_generation_prompt
        return {
            **self.chat_template_kwargs,
            "chat_template": template.text,
            "tools": [dict(t) if isinstance(t, Mapping) else t for t in self.tools] or None,
            "documents": [dict(d) for d in self.documents] or None,
            # A model that goes on with the last message gets no header of a new one.
            "add_generation_prompt": not self.continue_final_message if prompt is None else prompt,
            "continue_final_message": self.continue_final_message,
            "tokenize": False,
        }


def split_options(given: Mapping[str, Any]) -> tuple[ChatOptions, dict[str, Any]]:
    """Split keyword arguments into options and the rest, which may be variables of the template.

    Raises:
        RequestError: an option belongs elsewhere or has an invalid value.
    """
    known = {f.name for f in fields(ChatOptions)} | set(_FOREIGN)
    options = ChatOptions(**{key: value for key, value in given.items() if key in known})
    return options, {key: value for key, value in given.items() if key not in known}


def with_variables(
    options: ChatOptions, others: Mapping[str, Any], template: ChatTemplate
) -> ChatOptions:
    """The options, with the remaining keyword arguments as variables of the template.

    Raises:
        RequestError: the template reads no such variable.
    """
    names = [f.name for f in fields(ChatOptions)]
    free = sorted(template.variables - _OF_RENDERERS)
    spellings = [*names, *free, *_BESIDE, *(f.name for f in fields(SamplingParams))]
    for name in others:
        if name in options.chat_template_kwargs:
            raise RequestError(f"`{name}` is given twice, also in chat_template_kwargs")
        if name not in free:
            reads = f"; the chat template reads {', '.join(free)}" if free else ""
            raise RequestError(
                f"chat: unknown option `{name}`{nearest(name, spellings)} "
                f"(options: {', '.join(names)}{reads})"
            )
    if not others:
        return options
    every = {**options.chat_template_kwargs, **others}
    return ChatOptions(**{**{n: getattr(options, n) for n in names}, "chat_template_kwargs": every})


def check_plain(value: Any, place: str, depth: int = 0) -> None:
    """Raise RequestError unless a template can write the value: text, numbers, lists or
    mappings."""
    if depth > _MAX_DEPTH:
        raise RequestError(f"{place[:120]} is nested more than {_MAX_DEPTH} deep")
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, (str, int, float)):
                raise RequestError(f"{place[:120]} has the key {key!r:.60}; keys are text")
            check_plain(item, f"{place}.{key}", depth + 1)
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray)):
        for index, item in enumerate(value):
            check_plain(item, f"{place}[{index}]", depth + 1)
    elif value is not None and not isinstance(value, (str, int, float)):
        raise RequestError(
            f"{place[:120]} is {type(value).__name__} {value!r:.60}; a template can write text, "
            "numbers, lists and mappings"
        )


def _no_variable(name: str) -> RequestError:
    option = name in {f.name for f in fields(ChatOptions)} - {"chat_template_kwargs"}
    return RequestError(
        f"chat_template_kwargs names {name[:64]!r}, which is no variable of a template"
        + (", but an option beside it" if option else "")
    )


@lru_cache(maxsize=64)  # so that the log has it once
def _check_unread(name: str, variables: frozenset[str]) -> None:
    """Check a variable that the template never reads."""
    free = sorted(variables - _OF_RENDERERS)
    close = difflib.get_close_matches(name, free, n=1, cutoff=0.8)
    reads = f"it reads {', '.join(free)}" if free else "it reads none"
    if close:
        raise RequestError(
            f"chat_template_kwargs: the chat template reads no `{name[:64]}`; did you mean "
            f"`{close[0]}`? ({reads})"
        )
    logger.warning(
        "chat_template_kwargs: the chat template reads no %s, which has no effect; %s",
        name[:64],
        reads,
    )
