"""The tool parsers, and which one a model needs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol, TypeVar

from trtspec.config.strict import nearest
from trtspec.errors import ConfigError
from trtspec.serve.tools.deepseek import DeepSeekFencedParser, DeepSeekParser
from trtspec.serve.tools.glm import GlmParser
from trtspec.serve.tools.harmony import HarmonyParser
from trtspec.serve.tools.hermes import HermesParser
from trtspec.serve.tools.llama import LlamaParser
from trtspec.serve.tools.mistral import MistralListParser, MistralParser
from trtspec.serve.tools.parser import ToolParser
from trtspec.serve.tools.qwen_xml import QwenXmlParser
from trtspec.serve.tools.reasoning import REASONING, ReasoningParser

# The first whose signs a template holds is taken: the more particular ones stand before.
TOOL_PARSERS: tuple[ToolParser, ...] = (
    HarmonyParser(),
    QwenXmlParser(),
    GlmParser(),
    HermesParser(),
    DeepSeekFencedParser(),
    DeepSeekParser(),
    MistralParser(),
    MistralListParser(),
    LlamaParser(),
)
AUTO, NONE = "auto", "none"


class _Named(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def others(self) -> tuple[str, ...]: ...


P = TypeVar("P", bound=_Named)


def tool_parser(asked: str, template: str) -> ToolParser | None:
    """The parser with this name. "auto" picks by the chat template; None parses nothing.

    Raises:
        ConfigError: the name is unknown.
    """
    if asked == AUTO:
        return _for_template(template)
    return _named(asked, TOOL_PARSERS, "tool_call_parser")


def reasoning_parser(asked: str, template: str) -> ReasoningParser | None:
    """The reasoning parser with this name; see `tool_parser`."""
    if asked == AUTO:
        return next((each for each in REASONING if each.end in template), None)
    return _named(asked, REASONING, "reasoning_parser")


@lru_cache
def _for_template(template: str) -> ToolParser | None:
    fitting = (p for p in TOOL_PARSERS if all(sign in template for sign in p.signs))
    return next(fitting, None)


def _named(asked: str, parsers: Sequence[P], option: str) -> P | None:
    if asked == NONE:
        return None
    for parser in parsers:
        if asked in (parser.name, *parser.others):
            return parser
    names = [AUTO, NONE, *(parser.name for parser in parsers)]
    raise ConfigError(
        f"{option}={asked!r:.40} is not known{nearest(asked, names)}; there are {', '.join(names)}"
    )
