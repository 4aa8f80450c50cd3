"""Log probabilities in OpenAI's two forms."""

from __future__ import annotations

import math
from codecs import getincrementaldecoder
from collections.abc import Sequence
from typing import Any

from trtspec.executor.step.step_result import TokenLogprobs
from trtspec.llmapi.outputs import RequestOutput
from trtspec.serve.token_text import TokenText

LOWEST = -9999.0
"""Replaces minus infinity, which JSON cannot express."""


class CompletionLogprobs:
    """The form of /v1/completions: parallel lists. Offsets count characters of the text, in which a
    token may begin within one. The token itself is always listed, in addition to the best ones if
    necessary."""

    def __init__(self, tokens: TokenText) -> None:
        self._tokens = tokens
        self._offset = 0
        self._characters = getincrementaldecoder("utf-8")("replace")

    def __call__(self, entries: Sequence[TokenLogprobs]) -> dict[str, Any]:
        texts = [self._tokens.text(entry.token) for entry in entries]
        offsets = []
        for entry in entries:
            offsets.append(self._offset)
            self._pass(entry.token)
        return {
            "tokens": texts,
            "token_logprobs": [_finite(entry.logprob) for entry in entries],
            "top_logprobs": [self._by_text(entry) for entry in entries],
            "text_offset": offsets,
        }

    def of_prompt(self, output: RequestOutput) -> dict[str, Any]:
        """The lists for a prompt, of whose first token nothing is known."""
        first, *_ = output.prompt_token_ids
        text = self._tokens.text(first)
        is_added = text in self._tokens.special and not (output.prompt or text).startswith(text)
        if not is_added:
            self._pass(first)
        told = self([entry for entry in output.prompt_logprobs or () if entry is not None])
        known = {"tokens": text, "token_logprobs": None, "top_logprobs": None, "text_offset": 0}
        return {key: [known[key], *values] for key, values in told.items()}

    def _pass(self, token: int) -> None:
        self._offset += len(self._characters.decode(self._tokens.raw(token)))

    def _by_text(self, entry: TokenLogprobs) -> dict[str, float]:
        """Of several tokens with the same text the most likely one is listed."""
        found: dict[str, float] = {}
        for token, value in (*_best(entry), (entry.token, entry.logprob)):
            text = self._tokens.text(token)
            found[text] = max(found.get(text, LOWEST), _finite(value))
        return found


class ChatLogprobs:
    """The form of /v1/chat/completions: one object per token, with its bytes."""

    def __init__(self, tokens: TokenText) -> None:
        self._tokens = tokens

    def __call__(self, entries: Sequence[TokenLogprobs]) -> dict[str, Any]:
        return {
            "content": [
                {
                    **self._one(entry.token, entry.logprob),
                    "top_logprobs": [self._one(*pair) for pair in _best(entry)],
                }
                for entry in entries
            ],
            "refusal": None,
        }

    def _one(self, token: int, logprob: float) -> dict[str, Any]:
        return {
            "token": self._tokens.text(token),
            "logprob": _finite(logprob),
            "bytes": list(self._tokens.raw(token)),
        }


def _best(entry: TokenLogprobs) -> list[tuple[int, float]]:
    return sorted(entry.top.items(), key=lambda item: (-item[1], item[0]))


def _finite(value: float) -> float:
    return value if math.isfinite(value) else LOWEST
