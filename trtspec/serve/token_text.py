"""TokenText: the bytes of a single token, which may be half a character, and how to show them."""

from __future__ import annotations

import json
import re
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenText:
    """Single tokens of a transformers tokenizer as bytes and as text."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._special = set(tokenizer.all_special_tokens)
        kinds = _decoder_kinds(tokenizer)
        self._byte_level = "ByteLevel" in kinds
        self._byte_fallback = "ByteFallback" in kinds
        self._bytes_of = _byte_level_alphabet()
        self._known: dict[int, bytes] = {}

    def raw(self, token: int) -> bytes:
        """What the token adds to the text; empty for an id without a token."""
        known = self._known.get(token)
        if known is None:
            known = self._known[token] = self._find(token)
        return known

    def text(self, token: int) -> str:
        """The token as text; bytes that are no whole characters as ``bytes:\\xe2\\x82``, the way
        OpenAI writes them."""
        raw = self.raw(token)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def _find(self, token: int) -> bytes:
        piece = self._tokenizer.convert_ids_to_tokens(token)
        if piece is None:
            return b""
        if piece in self._special:
            return str(piece).encode()
        if self._byte_level and all(char in self._bytes_of for char in piece):
            return bytes(self._bytes_of[char] for char in piece)
        if self._byte_fallback:
            byte = _BYTE_TOKEN.fullmatch(piece)
            if byte:
                return bytes([int(byte[1], 16)])
            return str(piece).replace("\u2581", " ").encode()
        return str(self._tokenizer.decode([token])).encode()


def longest_token(tokenizer: Any) -> int:
    """Characters of the longest token: a text of n times as many cannot have n tokens or fewer."""
    return max(map(len, tokenizer.get_vocab()), default=1)


def _decoder_kinds(tokenizer: Any) -> set[str]:
    """Names of the steps that make text from pieces; empty without a fast tokenizer."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return set()
    decoder = json.loads(backend.to_str())["decoder"] or {}
    return {step["type"] for step in (decoder, *decoder.get("decoders", ())) if "type" in step}


def _byte_level_alphabet() -> dict[str, int]:
    """The letters by which byte-level vocabularies (GPT-2 and after) spell bytes: printable ones
    stand for themselves, the others for code points from 256 on, in order."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    letters = {chr(byte): byte for byte in plain}
    return letters | {chr(256 + i): byte for i, byte in enumerate(others)}
