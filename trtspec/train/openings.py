"""How texts begin: with the target's own questions, its own beginnings, or prompts from a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from jinja2 import TemplateError

from trtspec.errors import ConfigError, RequestError
from trtspec.llmapi.chat import content_form, in_form
from trtspec.llmapi.llm import LLM
from trtspec.train.seeds import SEEDS, SYSTEMS, Seed

CHAT, BASE, PROMPTS = "chat", "base", "prompts"
QUESTION_TOKENS, PASTED_TOKENS, BEGINNING_TOKENS = 128, 192, 32
_MARK = "trtspecquestion"


@dataclass(frozen=True)
class Beginning:
    """What the target is asked to write first. ``prompt``: token ids. ``max_tokens``: most that it
    writes; ``least``: fewest that are kept; ``must_end``: it must end by itself."""

    prompt: list[int]
    max_tokens: int
    least: int
    must_end: bool


class Openings(Protocol):
    def beginning(self, index: int) -> Beginning | None:
        """The beginning of text number ``index``; None if prompts are given."""
        ...

    def prompt(self, index: int, ids: Sequence[int], text: str) -> tuple[list[int], str] | None:
        """The prompt of text number ``index`` as token ids, and its key, given the beginning that
        was written for it; None if there are no more."""
        ...


class ChatOpenings:
    """An instruct model continues the first words of a user's turn, in its own chat template with
    one of several system turns, and then answers."""

    def __init__(self, llm: LLM) -> None:
        """ConfigError: there is no template, or it hides the user's words."""
        self._llm = llm
        self._heads: dict[str | None, str] = {None: question_head(llm.tokenizer)}
        for system in SYSTEMS:
            # Some templates have no place for a system's turn.
            with suppress(ConfigError):
                self._heads.setdefault(system, question_head(llm.tokenizer, system))

    def beginning(self, index: int) -> Beginning | None:
        seed, system = self._of(index)
        text = self._heads[system] + seed.words
        ids = self._llm.tokenizer(text, add_special_tokens=False)["input_ids"]
        most = PASTED_TOKENS if seed.pastes else QUESTION_TOKENS
        return Beginning(list(ids), most, 4, must_end=not seed.pastes)

    def prompt(self, index: int, ids: Sequence[int], text: str) -> tuple[list[int], str] | None:
        seed, system = self._of(index)
        question = (seed.words + text).rstrip("\N{REPLACEMENT CHARACTER}").strip()
        return _asked(self._llm, question, system), question

    def _of(self, index: int) -> tuple[Seed, str | None]:
        """How text number ``index`` begins."""
        system = SYSTEMS[index % len(SYSTEMS)]
        return SEEDS[index % len(SEEDS)], system if system in self._heads else None


class BaseOpenings:
    """A base model continues the beginning of a text."""

    def __init__(self, llm: LLM) -> None:
        model = llm.config.target
        starts = [model.bos_token_id, *model.eos_token_ids]
        start = next((token for token in starts if token is not None), 0)
        self._start = start

    def beginning(self, index: int) -> Beginning | None:
        return Beginning([self._start], BEGINNING_TOKENS, BEGINNING_TOKENS, must_end=False)

    def prompt(self, index: int, ids: Sequence[int], text: str) -> tuple[list[int], str] | None:
        return [self._start, *ids], text


class GivenPrompts:
    """The user's prompts, once each: through the chat template if there is one and ``chat`` asks
    for it, else as they are."""

    def __init__(self, llm: LLM, prompts: Sequence[str], chat: bool) -> None:
        self._llm, self._prompts, self._chat = llm, prompts, chat

    def beginning(self, index: int) -> Beginning | None:
        return None

    def prompt(self, index: int, ids: Sequence[int], text: str) -> tuple[list[int], str] | None:
        if index >= len(self._prompts):
            return None
        words = self._prompts[index]
        if self._chat:
            return _asked(self._llm, words), words
        return list(self._llm.tokenizer(words)["input_ids"]), words


def _asked(llm: LLM, words: str, system: str | None = None) -> list[int]:
    """The prompt of a chat in which a user says this."""
    prompt: Any = llm.chat_prompt(_turns(words, system))
    return list(prompt["prompt_token_ids"])


def _turns(words: str, system: str | None) -> list[Mapping[str, Any]]:
    user = {"role": "user", "content": words}
    return [user] if system is None else [{"role": "system", "content": system}, user]


def has_chat_template(tokenizer: Any) -> bool:
    return bool(getattr(tokenizer, "chat_template", None))


def question_head(tokenizer: Any, system: str | None = None) -> str:
    """A chat template up to the user's words, with these words of the system.

    Raises:
        ConfigError: there is none, or it does not show these words exactly once.
    """
    remedy = "let the target write on from its beginning (--from_base), or give --prompts"
    if not has_chat_template(tokenizer):
        raise ConfigError(f"the target has no chat template; {remedy}")
    try:
        messages = in_form(_turns(_MARK, system), content_form(str(tokenizer.get_chat_template())))
        text = tokenizer.apply_chat_template(messages, tokenize=False)
    except (RequestError, TemplateError, ValueError) as error:
        raise ConfigError(f"the chat template refused a question ({error}); {remedy}") from error
    head, found, _ = str(text).partition(_MARK)
    if not found or not head:
        raise ConfigError(f"the chat template does not say where a user's turn begins; {remedy}")
    return head
