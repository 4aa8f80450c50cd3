"""Prompts: turns what the caller gave into token ids, with the target's tokenizer."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any, SupportsIndex, TypeAlias

from trtspec.builder.tokenizer import has_tokenizer, read_tokenizer, tokenizer_folder
from trtspec.config.sampling import SamplingParams
from trtspec.engine.folder import TOKENIZER_FOLDER, is_engine_folder
from trtspec.errors import CheckpointError, RequestError
from trtspec.executor.text.token_decoder import TokenDecoder
from trtspec.llmapi.chat import in_form, written_as_a_list
from trtspec.llmapi.chat_options import split_options, with_variables
from trtspec.llmapi.chat_template import ChatTemplate, choose_template
from trtspec.llmapi.conversation import check_conversation, in_known_roles, uncommon_role
from trtspec.llmapi.options import LLMConfig

Prompt: TypeAlias = str | Sequence[int] | Mapping[str, Any]


def load_tokenizer(source: str | Path) -> Any:
    """The tokenizer in a folder.

    Raises:
        CheckpointError: there is none, or it cannot be read.
    """
    folder = Path(source)
    if not has_tokenizer(folder):
        raise CheckpointError(
            f"{folder} holds no tokenizer (tokenizer.json or tokenizer.model); add one to the "
            "checkpoint, give tokenizer=<folder>, or pass skip_tokenizer_init=True and token ids"
        )
    return read_tokenizer(folder)


def tokenizer_of(config: LLMConfig, model: Path) -> Any:
    """The tokenizer of a checkpoint or engine folder, or a requested other one; None if it is
    skipped."""
    if config.skip_tokenizer_init:
        return None
    if config.tokenizer is not None:
        return load_tokenizer(tokenizer_folder(config.tokenizer))
    return load_tokenizer(model / TOKENIZER_FOLDER if is_engine_folder(model) else model)


def is_single_prompt(prompts: Any) -> bool:
    """True for one prompt, False for a list of prompts; a list of numbers is one prompt.

    Anything but a list counts as one prompt; `PromptReader.read` refuses it if necessary.
    """
    if isinstance(prompts, (str, bytes, Mapping)) or not isinstance(prompts, Sequence):
        return True
    return bool(prompts) and all(isinstance(item, Real) for item in prompts)


class PromptReader:
    """Turns prompts into token ids and checks them against the vocabulary.

    decoder: decodes the tokenizer's tokens; None without a tokenizer.
    """

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        self.tokenizer = tokenizer
        self.decoder = None if tokenizer is None else TokenDecoder(tokenizer)
        self._vocab_size = vocab_size

    def read(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        """Return ``(text or None, token ids)``; RequestError if the prompt is empty or invalid. A
        text beside token ids is taken to be theirs."""
        text, content = None, prompt
        if isinstance(prompt, Mapping):
            if not prompt or not prompt.keys() <= {"prompt", "prompt_token_ids"}:
                raise RequestError(
                    f"a prompt mapping has the key `prompt` or `prompt_token_ids`, "
                    f"got {sorted(map(str, prompt))}"
                )
            content = prompt.get("prompt_token_ids", prompt.get("prompt"))
            text = prompt["prompt"] if len(prompt) == 2 else None
            if not isinstance(text, str | None):
                raise RequestError(f"`prompt` is a string, got {type(text).__name__} {text!r:.60}")
        if not isinstance(content, str):
            return text, self._checked(content)
        if not content:
            raise RequestError("the prompt is empty; it must have at least 1 token")
        return content, self._encode(content)

    def tokenize(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The tokens of a text, which may be none; RequestError: there is no tokenizer, or it
        cannot read the text."""
        if self.tokenizer is None:
            raise RequestError(
                "a text prompt needs a tokenizer, but skip_tokenizer_init=True; give token ids"
            )
        return list(self._tokenize(text, add_special_tokens=add_special_tokens))

    def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of tokens, special ones included; RequestError: there is no tokenizer, or one of
        them is no token."""
        if self.decoder is None:
            raise RequestError("token ids have no text, as skip_tokenizer_init=True")
        return self.decoder.decode(self._checked(tokens))

    def chat(self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> Prompt:
        """Apply the chat template; the result is a prompt of token ids. ``options``: see
        `ChatOptions`.

        Raises:
            RequestError: an option is unknown; there is no template, or it rejected the
                conversation; the conversation does not consist of text messages.
        """
        return self._in_template(messages, *self._template(options))

    def chat_tokens(
        self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> list[int]:
        """The tokens of `chat`."""
        return self.read(self.chat(messages, options))[1]

    def chats(self, conversations: Sequence[Any], options: Mapping[str, Any]) -> list[Prompt]:
        """`chat` for each of several; the options are checked even for an empty list."""
        template = self._template(options)
        return [
            self._in_template(messages, *template, where=f"messages[{index}]")
            for index, messages in enumerate(conversations)
        ]

    def _template(self, given: Mapping[str, Any]) -> tuple[ChatTemplate, dict[str, Any]]:
        """The requested template and the arguments to render it with."""
        options, others = split_options(given)
        template = choose_template(self.tokenizer, options.chat_template, bool(options.tools))
        options = with_variables(options, others, template)
        options.check_against(template)
        return template, options.arguments(self.tokenizer, template)

    def _in_template(
        self,
        messages: Any,
        template: ChatTemplate,
        arguments: Mapping[str, Any],
        where: str = "messages",
    ) -> Prompt:
        checked = check_conversation(messages, template, where)
        turns = in_known_roles(in_form(checked, template.form, where), template.text)
        try:
            text = self.tokenizer.apply_chat_template(turns, **arguments)
        except Exception as error:
            raise RequestError(
                f"{uncommon_role(turns, where)}the chat template refused the conversation: {error}"
            ) from error
        misread = written_as_a_list(turns, text)
        if misread is not None:
            raise RequestError(
                "the chat template loops over the parts of some contents, but writes those of "
                f"role {misread.get('role')!r} as a list; mend it, or format the conversation "
                "yourself and call generate()"
            )
        # The template writes its own special tokens.
        return {"prompt_token_ids": list(self._tokenize(text, add_special_tokens=False))}

    def resolve(self, params: SamplingParams) -> SamplingParams:
        """Tokenise `bad_words`, turn stop strings that are special tokens into stop tokens, and
        check every token id in the options."""
        words = [word for word in params.bad_words if isinstance(word, str)]
        if words:
            if self.tokenizer is None:
                raise RequestError(
                    f"bad_words={words!r} needs a tokenizer, but none was loaded; give token ids"
                )
            # A word at the beginning of a text and a word behind a space are different tokens.
            spelled = [v for word in words for v in (word, " " + word.lstrip())]
            ids = [tuple(self._tokenize(v, add_special_tokens=False)) for v in spelled]
            known = (*params.bad_words_ids, *(i for i in ids if i))
            params = replace(params, bad_words_ids=tuple(dict.fromkeys(known)))
        if params.stop and self.tokenizer is None:
            raise RequestError(
                f"stop={list(params.stop)!r} needs a tokenizer, but none was loaded; "
                "use stop_token_ids"
            )
        if params.stop and self.decoder is not None:
            # The model never emits a token beyond its vocabulary.
            named = [
                token
                for token, text in self.decoder.special.items()
                if text in params.stop and token < self._vocab_size
            ]
            stop_ids = tuple(dict.fromkeys((*params.stop_token_ids, *named)))
            params = replace(params, stop_token_ids=stop_ids)
        params.check_vocabulary(self._vocab_size)
        return params

    def _encode(self, text: str) -> list[int]:
        return self._checked(self.tokenize(text))

    def _tokenize(self, text: str, **options: Any) -> Any:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                f"character {error.start} of a text is {text[error.start]!r}, half of a character "
                "(a lone surrogate), which no tokenizer can read"
            ) from None
        return self.tokenizer(text, **options)["input_ids"]

    def _checked(self, ids: Any) -> list[int]:
        if hasattr(ids, "tolist"):  # an array or a tensor
            ids = ids.tolist()
        if isinstance(ids, (str, bytes)) or not isinstance(ids, Sequence):
            raise RequestError(
                f"a prompt is a string, a list of token ids or a mapping, got {type(ids).__name__} "
                f"{ids!r:.60}"
            )
        if len(ids) == 0:
            raise RequestError("the prompt is empty; it must have at least 1 token")
        for position, token in enumerate(ids):
            if isinstance(token, bool) or not isinstance(token, SupportsIndex):
                raise RequestError(
                    f"prompt_token_ids[{position}] is {token!r}; a token id is an integer"
                )
            if not 0 <= operator.index(token) < self._vocab_size:
                raise RequestError(
                    f"prompt_token_ids[{position}] is {token}, but the vocabulary has "
                    f"{self._vocab_size} ids (0 to {self._vocab_size - 1})"
                )
        return [operator.index(token) for token in ids]
