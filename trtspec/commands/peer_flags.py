"""Flags that a program does not declare: options of `LLM` by name, and flags of vLLM's, SGLang's
and TensorRT-LLM's programs. Each has the same meaning, or is refused for the same reason, as in
Python."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from trtspec.config.speculative_keys import any_bool
from trtspec.config.strict import Foreign, key_rules
from trtspec.errors import ConfigError
from trtspec.llmapi.options import LLMConfig
from trtspec.llmapi.peer_options import is_of_speculation

_SHORT = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-q": "--quantization",
    "-sc": "--speculative-config",
    "-cc": "--compilation-config",
}
_WORDS = {"true": True, "false": False, "none": None, "null": None}


def part_flags(
    parser: argparse.ArgumentParser, argv: Sequence[str], more: Mapping[str, Foreign]
) -> tuple[list[str], dict[str, Any]]:
    """Separate the words for ``parser``, with its flags in its own spelling (- and _ are equal),
    from other flags that are known as options. ``more``: further foreign flags, besides those of
    `LLM`. Unknown words are left to the parser.

    Raises:
        ConfigError: one of ``more`` asks for something that is not offered.
    """
    own = {_key(flag): flag for flag in parser._option_string_actions if flag.startswith("--")}
    words: list[str] = []
    others: dict[str, Any] = {}
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        name = _SHORT.get(name, name)
        key = _key(name) if name.startswith("--") else ""
        if key in own:
            words.append(own[key] + equals + value)
        elif not _is_known(key, more) and not _is_known(key.removeprefix("no_"), more):
            words.append(word)
        else:
            given = [value] if equals else []
            takes = not equals and not _is_switch(key, more)
            while takes and rest and not rest[0].startswith("-"):
                given.append(rest.pop(0))
                takes = bool(rest) and rest[0].isdecimal()  # a list of numbers
            if key.startswith("no_") and not _is_known(key, more):
                key, given = key.removeprefix("no_"), ["false"]
            others[key] = _value(given)
    for key in more.keys() & others.keys():
        value = others.pop(key)
        if not more[key].allows(value, others):
            raise ConfigError(f"--{key}={value!r} is refused: {more[key].reason}")
    return words, others


def _key(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _options() -> Mapping[str, Foreign | None]:
    """Keyword options of `LLM` by name, with the rules for those that it refuses."""
    rules = key_rules(LLMConfig)
    own = [field.name for field in fields(LLMConfig)]
    return {**dict.fromkeys([*own, *rules.aliases]), **rules.foreign}


def _is_known(key: str, more: Mapping[str, Foreign]) -> bool:
    return key in more or key in _options() or is_of_speculation(key)


def _is_switch(key: str, more: Mapping[str, Foreign]) -> bool:
    """Whether a flag takes no value: everything known about it is true or false."""
    rule = more.get(key) or _options().get(key)
    if rule is None:
        annotation = {field.name: field.type for field in fields(LLMConfig)}.get(key)
        return key.startswith("no_") or annotation == "bool"
    if callable(rule.accepts):
        return rule.accepts is any_bool
    values = [value for value in rule.accepts if value is not None]
    return bool(values) and all(isinstance(value, bool) for value in values)


def _value(words: Sequence[str]) -> Any:
    if not words:
        return True
    values = [_read(word) for word in words]
    return values[0] if len(values) == 1 else values


def _read(word: str) -> Any:
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    try:
        return json.loads(word)
    except ValueError:
        return word
