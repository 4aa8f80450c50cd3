"""Speculative methods as benchmarks take them: short spellings, JSON, or all that fit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from trtspec.builder.available_drafts import FoundDraft
from trtspec.config.decoding import DecodingConfig
from trtspec.config.tree_decoding import TreeDecodingConfig
from trtspec.errors import ConfigError
from trtspec.speculative.options import MODEL_KEYS, names_no_method, parse_speculative_config
from trtspec.speculative.registry import NO_METHOD, method_name, methods

NONE = NO_METHOD
_NUMBERS = {1: ("num_speculative_tokens",), 3: ("topk", "num_steps", "num_draft_tokens")}
_ADAPTIVE = "+adaptive"


@dataclass(frozen=True)
class BenchMethod:
    """A contender: its name in tables, and its config (None: no speculation)."""

    name: str
    config: DecodingConfig | None

    @property
    def is_lossless(self) -> bool:
        """Whether the text is promised to be the target's own."""
        config = self.config
        return config is None or (
            config.simulate_acceptance is None and config.typical_acceptance is None
        )


def fitting_methods(drafts: Sequence[FoundDraft]) -> list[BenchMethod]:
    """No speculation, methods that need no draft, and usual settings for each draft."""
    free = [each for each in methods().values() if not _has_draft(each.name)]
    spellings = [spelling for method in free for spelling in method.usual]
    for method in dict.fromkeys(draft.method for draft in drafts):
        spellings += _usual(method)
    return read_methods(spellings, drafts)


def usual_methods(drafts: Sequence[FoundDraft]) -> list[BenchMethod]:
    """The usual chain for each draft."""
    names = dict.fromkeys(draft.method for draft in drafts)
    return read_methods([_usual(name)[0] for name in names], drafts)[1:]


def read_methods(spellings: Sequence[str], drafts: Sequence[FoundDraft]) -> list[BenchMethod]:
    """The requested methods, after no speculation, with which all are compared.

    A spelling is ``method:K`` (a chain) or ``method:k,D,N`` (a tree), with the suffix ``+adaptive``
    for as much as pays; ``auto``, or ``auto:method`` with the draft for one; or the JSON of a
    speculative config, named after its method unless another JSON has the same. If it names no
    draft, it stands for every draft that is made for its method.

    Raises:
        ConfigError: an invalid spelling, options that do not fit, no draft for a method, or a
            duplicate.
    """
    found = [BenchMethod(NONE, None)]
    wanted = [(text, _read(text)) for text in spellings if not _is_none(text)]
    as_json = [options.get("method") for text, (options, _) in wanted if _is_json(text)]
    for text, (options, draft_method) in wanted:
        own = _drafts_for(text, draft_method, drafts)
        label = text
        if _is_json(text) and as_json.count(options.get("method")) == 1:
            label = str(options.get("method"))
        for draft in own:
            name = label if len(own) < 2 or draft is None else f"{label} ({Path(draft.name).name})"
            given = options if draft is None else {**options, "model": draft.name}
            found.append(BenchMethod(name, parse_speculative_config(given)))
    names = [method.name for method in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"{', '.join(twice)} is asked for twice; write it once")
    return found


def _has_draft(method: str) -> bool:
    return issubclass(methods()[method].options, TreeDecodingConfig)


def _usual(method: str) -> Sequence[str]:
    return methods()[method].usual or (f"{method}:4",)


def _is_none(text: str) -> bool:
    if not _is_json(text):
        return text.lower() == NO_METHOD
    with suppress(ValueError):  # what is no JSON is refused with the others
        return names_no_method(json.loads(text))
    return False


def _is_json(text: str) -> bool:
    return text.lstrip().startswith("{")


class _Wanted(NamedTuple):
    """A speculative config, and the method whose drafts it takes; None: none."""

    options: Mapping[str, Any]
    draft_method: str | None


def _read(text: str) -> _Wanted:
    """What a spelling means."""
    if _is_json(text):
        try:
            options: dict[str, Any] = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"{text!r:.80} is not JSON: {error}") from error
        named = any(key in options for key in MODEL_KEYS)
        method = options.get("method")
        return _Wanted(options, None if named or method is None else method_name(method))
    shape = text.removesuffix(_ADAPTIVE)
    adaptive = {"adaptive": True} if shape != text else {}
    name, colon, numbers = shape.partition(":")
    method = method_name(name)  # before its numbers: it is what people mistype
    if methods()[method].any_draft:
        beside = method_name(numbers) if colon else None
        if beside is not None and not _has_draft(beside):
            raise ConfigError(f"{text}: {beside} has no draft; write {method} alone")
        return _Wanted({"method": method}, beside)
    values = numbers.split(",") if colon else []
    keys = _NUMBERS.get(len(values))
    if keys is None or not all(value.isdecimal() for value in values):
        raise ConfigError(
            f"{text!r} is not method:K or method:k,D,N, such as eagle3:5 or eagle3:4,5,24; other "
            'options can be given as JSON: {"method": ...}'
        )
    sizes = dict(zip(keys, map(int, values), strict=True))
    return _Wanted({"method": method, **sizes, **adaptive}, method)


def _drafts_for(
    text: str, method: str | None, drafts: Sequence[FoundDraft]
) -> list[FoundDraft | None]:
    """The drafts for a method; None if it needs none."""
    config = methods()[method].options if method else None
    if method is None or config is None or not issubclass(config, TreeDecodingConfig):
        return [None]
    if methods()[method].copies_target:
        return [None]
    wanted = methods()[method].draft_method
    fitting: list[FoundDraft | None] = [draft for draft in drafts if draft.method == wanted]
    if fitting:
        return fitting
    if methods()[method].by_target:
        raise ConfigError(f"{text} needs modules in the target's own checkpoint, which has none")
    found = ", ".join(f"{draft.name} ({draft.method})" for draft in drafts)
    raise ConfigError(
        f"{text} needs a draft for it; give it in --drafts (found: {found or 'none'})"
    )
