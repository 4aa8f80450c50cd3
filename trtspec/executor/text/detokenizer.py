"""Detokenizer: the text of a growing token list, in pieces that no later token changes."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from itertools import islice
from typing import Any

from trtspec.executor.text.token_decoder import TokenDecoder

MARK = "\ufffd"
_INVALID = re.compile("[\udc80-\udcff]")
_SURROGATE = re.compile(b"\xed[\xa0-\xbf]")
"""Bytes with which no character begins (the Unicode Standard, table 3-7). Python's decoder waits
for a third byte, as its error handler `surrogatepass` would read them."""


class Utf8Stream:
    """Characters as soon as their last byte has arrived; U+FFFD for bytes that belong to none."""

    def __init__(self, marks_each_byte: bool) -> None:
        """`marks_each_byte`: one mark for every invalid byte; otherwise an incomplete character
        gets one mark as a whole."""
        errors = "surrogateescape" if marks_each_byte else "replace"
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors)

    @property
    def pending(self) -> bytes:
        """The bytes of an unfinished character, at most 3."""
        return self._decoder.getstate()[0]

    def push(self, data: bytes) -> tuple[str, bool]:
        """The completed characters, and whether some are marks of single invalid bytes."""
        text = self._decoder.decode(data)
        if _SURROGATE.match(self.pending):
            text += self._decoder.decode(b"", final=True)
        marked, count = _INVALID.subn(MARK, text)
        return marked, count > 0

    def clear(self) -> None:
        """Forget an unfinished character."""
        self._decoder.reset()


_MAX_HELD = 64  # tokens; far more than a character has
_PROMPT_CONTEXT = 8  # tokens; one does in most vocabularies


class Detokenizer:
    """Text of a growing token list; a character is given out once its last byte has come.

    The pieces join to decode(context + tokens) less decode(context); a character that the context
    only begins belongs to the text. Bytes are read as UTF-8 while they come: an unfinished
    character is known by its bytes, and a U+FFFD that a token spells is a character like others.

    - A byte that belongs to no character is shown as a mark, U+FFFD. As the tokenizer has it, each
      such byte has one with byte fallback; in byte-level vocabularies the beginning of a character
      that does not go on has one in all.
    - Characters stand, whatever bytes surround them. (Decoders with byte fallback make marks of a
      whole run of bytes in which one is wrong: no rule for a text of which a part is shown.)
    - An unfinished character at the end is one mark, given out by `flush`.

    A token's time does not depend on how many came before it: of tokens that are text only a window
    is decoded, those of the last piece, as some tokenizers decide about a space by what stands
    before, and those since.
    """

    def __init__(
        self, tokenizer: Any, skip_special_tokens: bool = True, context: Sequence[int] = ()
    ) -> None:
        """`tokenizer`: one of transformers or of tokenizers, or the TokenDecoder of one. `context`:
        the tokens before the text, such as the prompt."""
        self._decoder = TokenDecoder.of(tokenizer)
        self._skipped = self._decoder.special if skip_special_tokens else {}
        self._utf8 = Utf8Stream(marks_each_byte=not self._decoder.is_byte_level)
        self._is_open = False  # the text so far ends inside a character
        self._context: list[int] = []  # the last tokens with text
        self._held: list[int] = []  # text tokens behind them that have none yet
        self._run: list[int] = []  # byte tokens of the character under way
        self._begun = False  # until then a decoder may leave out a first space
        if self._decoder.is_byte_level:
            self._begun = True
            self._read_bytes(self._end_of(context, 3))
        else:
            self._read_context(context)

    def push(self, token: int) -> str:
        """Append a token; returns the characters it completes, often none within a character."""
        if token not in self._skipped and not self._utf8.pending:
            text = self._decoder.whole(token)
            if text is not None:  # byte-level: nothing before it says what it is
                return text
        if not self._is_shown(token):
            return ""
        data = self._decoder.bytes_of(token)
        if data is not None:
            return self._push_byte_token(token, data)
        marks = MARK * len(self._utf8.pending)
        self._utf8.clear()
        if self._run:
            self._go_on_behind(self._run[-1])
        return marks + self._push_text([token])

    def flush(self) -> str:
        """What is held back at the end of the text: the mark of an incomplete character."""
        if not self._is_open:
            return ""
        self._is_open = False
        if self._utf8.pending:
            self._utf8.clear()
            return MARK
        return self._window_text()

    def _is_shown(self, token: int) -> bool:
        return token not in self._skipped and self._decoder.piece(token) is not None

    def _end_of(self, tokens: Sequence[int], count: int) -> list[int]:
        """The last visible tokens, up to that many."""
        newest_first = (token for token in reversed(tokens) if self._is_shown(token))
        return list(islice(newest_first, count))[::-1]

    def _read_bytes(self, tokens: Sequence[int]) -> None:
        """Read the bytes of a character that the tokens only begin: the last three tokens suffice,
        as UTF-8 shows where a character begins."""
        for token in tokens[-3:]:
            data = self._decoder.bytes_of(token)
            if data is None:
                self._utf8.clear()
            else:
                self._utf8.push(data)

    def _read_context(self, context: Sequence[int]) -> None:
        width = _PROMPT_CONTEXT
        shown = self._end_of(context, width)
        while len(shown) == width and not self._decoder.decode(shown):  # spaces left out, say
            width *= 4
            shown = self._end_of(context, width)
        self._read_bytes(shown)
        cut = len(shown) - len(self._utf8.pending)
        self._context, self._run = shown[:cut], shown[cut:]
        text = self._decoder.decode(self._context)
        while self._context and len(self._held) < 3 and self._is_cut(text, self._context[-1]):
            self._held.insert(0, self._context.pop())
            text = self._decoder.decode(self._context)
        self._begun = bool(text)

    def _push_byte_token(self, token: int, data: bytes) -> str:
        text, has_invalid = self._utf8.push(data)
        self._is_open = bool(self._utf8.pending)
        self._run.append(token)
        if not text:
            return ""
        if has_invalid or (self._begun and not self._held):
            self._go_on_behind(token)
            return text
        character, self._run = self._run, []
        return self._push_text(character, is_whole=True)

    def _go_on_behind(self, token: int) -> None:
        """Bytes up to this token were shown, so what follows is not the first of the text."""
        self._context, self._held, self._run = [token], [], []
        self._begun = True

    def _push_text(self, tokens: Sequence[int], is_whole: bool = False) -> str:
        self._held += tokens
        text = self._window_text()
        self._is_open = not is_whole and self._is_cut(text, tokens[-1])
        is_full = len(self._held) > _MAX_HELD
        if not text and is_full:
            self._held.pop()
        if not text or (self._is_open and not is_full):
            return ""
        self._context, self._held = self._held, []
        self._begun, self._is_open = True, False
        return text

    def _window_text(self) -> str:
        """The text of the tokens held."""
        before = self._decoder.decode(self._context)
        return self._decoder.decode([*self._context, *self._held])[len(before) :]

    def _is_cut(self, text: str, last: int) -> bool:
        """True if a text ends in a mark that its last token does not spell: some Python tokenizers
        do not say which of their tokens are bytes."""
        if not text.endswith(MARK) or self._decoder.bytes_of(last) is not None:
            return False
        return not self._decoder.spells(last, MARK)
