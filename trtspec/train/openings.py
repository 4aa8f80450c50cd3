"""Where texts begin: the target's own questions, its own beginnings, or prompts from a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from trtspec.errors import ConfigError, RequestError
from trtspec.llmapi.chat import content_form, in_form
from trtspec.llmapi.llm import LLM

CHAT, BASE, PROMPTS = "chat", "base", "prompts"
QUESTION_TOKENS, BEGINNING_TOKENS = 128, 32
_MARK = "trtspecquestion"


@dataclass(frozen=True)
class Beginning:
    """What the target is asked to write first. ``prompt``: token ids. ``max_tokens``: most that it
    writes; ``least``: fewest that are kept; ``must_end``: it has to end by itself."""

    prompt: list[int]
    max_tokens: int
    least: int
    must_end: bool


class Openings(Protocol):
    """beginning: None where the texts' prompts are given."""

    beginning: Beginning | None

    def prompt(self, index: int, ids: Sequence[int], text: str) -> tuple[list[int], str] | None:
        """The prompt of text number ``index`` as token ids, and what it is known by, from the
        beginning that was written for it; None where there are no more."""
        ...


class ChatOpenings:
    """An instruct model writes the user's turn of its own chat template, then answers it."""

    def __init__(self, llm: LLM) -> None:
        """ConfigError: there is no template, or it hides the user's words."""
        self._llm = llm
        head = question_head(llm.tokenizer)
        ids = llm.tokenizer(head, add_special_tokens=False)["input_ids"]
        self.beginning: Beginning | None = Beginning(list(ids), QUESTION_TOKENS, 4, must_end=True)

    def prompt(self, index: int, ids: Sequence[int], text: str) -> tuple[list[int], str] | None:
        question = text.strip()
        return _asked(self._llm, question), question


class BaseOpenings:
    """A base model writes on from the beginning of a text."""

    def __init__(self, llm: LLM) -> None:
        model = llm.config.target
        starts = [model.bos_token_id, *model.eos_token_ids]
        start = next((token for token in starts if token is not None), 0)
        self.beginning: Beginning | None = Beginning(
            [start], BEGINNING_TOKENS, BEGINNING_TOKENS, must_end=False
        )
        self._start = start

    def prompt(self, index: int, ids: Sequence[int], text: str) -> tuple[list[int], str] | None:
        return [self._start, *ids], text


class GivenPrompts:
    """Prompts of the user's, once each: through the chat template where there is one and ``chat``
    asks for it, else as they are."""

    beginning: Beginning | None = None

    def __init__(self, llm: LLM, prompts: Sequence[str], chat: bool) -> None:
        self._llm, self._prompts, self._chat = llm, prompts, chat

    def prompt(self, index: int, ids: Sequence[int], text: str) -> tuple[list[int], str] | None:
        if index >= len(self._prompts):
            return None
        words = self._prompts[index]
        if self._chat:
            return _asked(self._llm, words), words
        return list(self._llm.tokenizer(words)["input_ids"]), words


def _asked(llm: LLM, words: str) -> list[int]:
    """The prompt of a chat in which a user says this."""
    prompt: Any = llm.chat_prompt([{"role": "user", "content": words}])
    return list(prompt["prompt_token_ids"])


def has_chat_template(tokenizer: Any) -> bool:
    return bool(getattr(tokenizer, "chat_template", None))


def question_head(tokenizer: Any) -> str:
    """A chat template up to where the user's words begin.

    Raises:
        ConfigError: there is none, or it does not show these words once.
    """
    remedy = "let the target write on from its beginning (--from_base), or give --prompts"
    if not has_chat_template(tokenizer):
        raise ConfigError(f"the target has no chat template; {remedy}")
    turn: list[Mapping[str, Any]] = [{"role": "user", "content": _MARK}]
    try:
        messages = in_form(turn, content_form(str(tokenizer.get_chat_template())))
        text = tokenizer.apply_chat_template(messages, tokenize=False)
    except (RequestError, ValueError) as error:
        raise ConfigError(f"the chat template refused a question ({error}); {remedy}") from error
    head, found, _ = str(text).partition(_MARK)
    if not found or not head:
        raise ConfigError(f"the chat template does not say where a user's turn begins; {remedy}")
    return head
