"""TokenText: the bytes of a single token, which may be part of a character, and how to show
them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trtspec.executor.text.token_decoder import TokenDecoder


class TokenText:
    """Single tokens of a tokenizer as bytes and as text."""

    def __init__(self, tokenizer: Any) -> None:
        self._decoder = TokenDecoder.of(tokenizer)
        self._known: dict[int, bytes] = {}
        self.special = frozenset(self._decoder.special.values())
        self._tokenizer = tokenizer

    def raw(self, token: int) -> bytes:
        """The bytes that the token adds inside a text; empty for an id without a token."""
        known = self._known.get(token)
        if known is None:
            known = self._known[token] = self._find(token)
        return known

    def join(self, tokens: Sequence[int]) -> str:
        """The text of several in a row."""
        return b"".join(map(self.raw, tokens)).decode(errors="replace")

    def id_of(self, text: str) -> int | None:
        """The token that is this text; None: there is none."""
        token = self._tokenizer.convert_tokens_to_ids(text)
        return token if token is not None and self.text(token) == text else None

    def text(self, token: int) -> str:
        """The token as text; bytes that are no whole characters as ``bytes:\\xe2\\x82``, the way
        OpenAI writes them."""
        raw = self.raw(token)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def _find(self, token: int) -> bytes:
        if token in self._decoder.special:
            return self._decoder.special[token].encode()
        if self._decoder.piece(token) is None:
            return b""
        data = self._decoder.bytes_of(token)
        if data is not None:
            return data
        # Behind itself it is not the first, whose space a decoder may leave out.
        once, twice = (self._decoder.decode([token] * n) for n in (1, 2))
        return twice[len(once) :].encode()


def longest_token(tokenizer: Any) -> int:
    """Characters of the longest token: a text of n times that length has at least n tokens."""
    return max(map(len, tokenizer.get_vocab()), default=1)
