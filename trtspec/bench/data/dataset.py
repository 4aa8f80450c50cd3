"""Prompts for benchmarks: Spec-Bench and MT-Bench questions, plain text, held-out source code."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtspec.bench.data.corpus import standard_library
from trtspec.errors import ConfigError

STDLIB = "stdlib"
STDLIB_TOKENS = 128
_JSON_SUFFIXES = (".jsonl", ".json")


@dataclass(frozen=True)
class Question:
    """One entry of a data set, before tokenization.

    ``id``: its number in the data set, else its line; ``is_chat``: the first turn of a
    conversation, to be wrapped in the model's chat template if it has one.
    """

    id: str
    text: str
    category: str | None = None
    is_chat: bool = False


@dataclass(frozen=True)
class BenchPrompt:
    """A question as the model reads it."""

    question: Question
    token_ids: list[int]


def read_questions(path: Path) -> list[Question]:
    """The entries of a file.

    ``.jsonl`` or ``.json``: one object per line, ``{"turns": [...]}`` as in Spec-Bench and MT-Bench
    (their ``question_id`` and ``category`` are kept, the first turn is asked), ``{"kind": ...,
    "prompt": ...}``, a turn of that category, or ``{"prompt": ...}`` to be continued. Any other
    suffix: plain text, every line that is not blank is a prompt.

    Raises:
        ConfigError: the file is missing or empty, or a line is none of these; file and line are
            named.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the data set {path} cannot be read: {error}; give a .jsonl or text file, "
            f"or {STDLIB!r}"
        ) from error
    is_json = path.suffix in _JSON_SUFFIXES
    questions = [
        _parse(line, f"{path}, line {number}", number) if is_json else Question(str(number), line)
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    if not questions:
        raise ConfigError(f"the data set {path} holds no prompt")
    return questions


def _parse(line: str, where: str, number: int) -> Question:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where} is not JSON: {error}") from error
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{where} holds a {type(entry).__name__}; an entry is a JSON object")
    text, turns, kind = entry.get("prompt"), entry.get("turns"), entry.get("kind")
    is_chat = turns is not None or kind is not None
    if turns is not None:
        if not (isinstance(turns, list) and turns):
            raise ConfigError(
                f"{where}: turns must be a list of at least one text, got {turns!r:.60}"
            )
        text = turns[0]
    if not isinstance(text, str) or not text:
        raise ConfigError(
            f'{where} has no text; an entry is {{"turns": ["..."]}}, {{"kind": "...", "prompt": '
            f'"..."}} or {{"prompt": "..."}}, its keys are {", ".join(map(str, entry)) or "none"}'
        )
    category = entry.get("category", kind)
    name = str(entry.get("question_id", number))
    return Question(name, text, None if category is None else str(category), is_chat)


def spread(questions: Sequence[Question], count: int | None) -> list[Question]:
    """``count`` evenly spaced items, so that every part of a file sorted by category is covered;
    all of them if there are no more, or for None."""
    if count is None or count >= len(questions):
        return list(questions)
    return [questions[i * len(questions) // count] for i in range(count)]


def encode_questions(
    questions: Sequence[Question], tokenizer: Any, max_tokens: int | None = None, chat: bool = True
) -> list[BenchPrompt]:
    """The questions as token ids.

    Texts are cut to ``max_tokens`` (None: whole). With ``chat``, turns of conversations go through
    the tokenizer's chat template if it has one, in addition to the cut text.
    """
    has_template = chat and bool(getattr(tokenizer, "chat_template", None))
    prompts = []
    for question in questions:
        text = question.text
        ids: list[int] = tokenizer(text)["input_ids"]
        is_long = max_tokens is not None and len(ids) > max_tokens
        if question.is_chat and has_template:
            if is_long:
                text = tokenizer.decode(ids[:max_tokens], skip_special_tokens=True)
            turn = [{"role": "user", "content": text}]
            wrapped = tokenizer.apply_chat_template(
                turn, tokenize=False, add_generation_prompt=True
            )
            ids = tokenizer(wrapped, add_special_tokens=False)["input_ids"]
        elif is_long:
            ids = ids[:max_tokens]
        prompts.append(BenchPrompt(question, list(ids)))
    return prompts


def held_out_prompts(tokenizer: Any, count: int, length: int = STDLIB_TOKENS) -> list[BenchPrompt]:
    """The first ``length`` tokens of held-out standard library files at least twice as long."""
    prompts: list[BenchPrompt] = []
    for text in standard_library()[1]:
        ids: list[int] = tokenizer(text[: 16 * length])["input_ids"]
        if len(ids) >= 2 * length:
            prompts.append(BenchPrompt(Question(str(len(prompts)), text), ids[:length]))
        if len(prompts) == count:
            break
    return prompts
