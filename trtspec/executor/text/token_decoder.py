"""TokenDecoder: what the tokens of a tokenizer are, bytes or text, and what a list of them
spells."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenDecoder:
    """Decodes the tokens of one tokenizer, of transformers or of tokenizers.

    special: id -> text of the special tokens. is_byte_level: every token is a piece of UTF-8, as in
    GPT-2 and Llama 3, so that a text is exactly its tokens' bytes. In other vocabularies tokens are
    text, and single bytes (``<0xE2>``, "byte fallback") spell the rest.
    """

    def __init__(self, tokenizer: Any) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is not None:
            tokenizer = backend
        self._tokenizer = tokenizer
        # Those of transformers in pure Python have no backend, and other methods.
        self._slow = hasattr(tokenizer, "convert_ids_to_tokens")
        self.special: Mapping[int, str]
        if self._slow:
            names = zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True)
            self.special = {token: str(name) for token, name in names}
        else:
            added = tokenizer.get_added_tokens_decoder().items()
            self.special = {token: a.content for token, a in added if a.special}
        steps = set() if self._slow else _decoder_steps(tokenizer.decoder)
        self.is_byte_level = "ByteLevel" in steps and steps <= {"Sequence", "ByteLevel", "Fuse"}
        self._letters = _byte_level_alphabet()
        self._bytes: dict[int, bytes | None] = {}
        self._whole: dict[int, str | None] = {}

    @classmethod
    def of(cls, tokenizer: Any) -> TokenDecoder:
        """The decoder of a tokenizer; a decoder is returned as it is."""
        return tokenizer if isinstance(tokenizer, TokenDecoder) else cls(tokenizer)

    def piece(self, token: int) -> str | None:
        """The token as the vocabulary spells it; None for an id without a token."""
        if self._slow:
            piece = self._tokenizer.convert_ids_to_tokens(token)
        else:
            piece = self._tokenizer.id_to_token(token)
        return None if piece is None else str(piece)

    def spells(self, token: int, text: str) -> bool:
        """True if the token's spelling contains the text, rather than placeholders for bytes that
        cannot be shown alone."""
        piece = self.piece(token)
        if piece is None or text not in piece:
            return False
        return not self._slow or self._tokenizer.convert_tokens_to_ids(piece) == token

    def bytes_of(self, token: int) -> bytes | None:
        """The bytes of a byte token, which may be part of a character; None for text."""
        if token not in self._bytes:
            self._bytes[token] = self._find_bytes(token)
        return self._bytes[token]

    def whole(self, token: int) -> str | None:
        """The text of a byte-level token whose bytes are whole characters; None for others."""
        if token not in self._whole:
            self._whole[token] = self._find_whole(token)
        return self._whole[token]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of a list, including special tokens, without the cosmetic clean-up of spaces,
        which would change the text later."""
        if self._slow:
            return str(self._tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False))
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False))

    def _find_whole(self, token: int) -> str | None:
        data = self.bytes_of(token) if self.is_byte_level else None
        try:
            return None if data is None else data.decode()
        except UnicodeDecodeError:
            return None

    def _find_bytes(self, token: int) -> bytes | None:
        piece = self.piece(token)
        if piece is None:
            return None
        if self.is_byte_level:
            # A token that was added to the vocabulary is spelt in plain characters.
            if any(char not in self._letters for char in piece):
                return piece.encode()
            return bytes(self._letters[char] for char in piece)
        byte = _BYTE_TOKEN.fullmatch(piece)
        # Spelling alone decides nothing: to some decoders these are six characters.
        if byte and self.decode([token]) != piece:
            return bytes([int(byte[1], 16)])
        return None


def _decoder_steps(decoder: Any) -> set[str]:
    """Names of the decoder's steps, from pieces to text."""
    if decoder is None:
        return set()
    state = json.loads(decoder.__getstate__())
    return {step["type"] for step in (state, *state.get("decoders", ())) if "type" in step}


def _byte_level_alphabet() -> dict[str, int]:
    """The characters by which byte-level vocabularies (GPT-2 and after) spell bytes: printable ones
    as themselves, the others as code points from 256 on, in order."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    letters = {chr(byte): byte for byte in plain}
    return letters | {chr(256 + i): byte for i, byte in enumerate(others)}
