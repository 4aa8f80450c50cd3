"""Utf8Stream: bytes that come one after the other, read as UTF-8."""

from __future__ import annotations

import codecs
import re

MARK = "\ufffd"
_INVALID = re.compile("[\udc80-\udcff]")
_SURROGATE = re.compile(b"\xed[\xa0-\xbf]")
"""Bytes that no character begins with (the Unicode Standard, table 3-7). Python's decoder waits for
the third one, as its error handler `surrogatepass` would read them."""


class Utf8Stream:
    """Characters as soon as their last byte has come; U+FFFD for bytes that belong to none."""

    def __init__(self, marks_each_byte: bool) -> None:
        """`marks_each_byte`: a mark for every invalid byte; else the beginning of a character that
        does not go on has one mark in all."""
        errors = "surrogateescape" if marks_each_byte else "replace"
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors)

    @property
    def pending(self) -> bytes:
        """The bytes of an unfinished character, at most 3."""
        return self._decoder.getstate()[0]

    def push(self, data: bytes) -> tuple[str, bool]:
        """The characters completed, and whether some are marks of single invalid bytes."""
        text = self._decoder.decode(data)
        if _SURROGATE.match(self.pending):
            text += self._decoder.decode(b"", final=True)
        marked, count = _INVALID.subn(MARK, text)
        return marked, count > 0

    def clear(self) -> None:
        """Forget an unfinished character."""
        self._decoder.reset()
