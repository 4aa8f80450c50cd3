"""Server-sent events, read incrementally from bytes that may be cut anywhere."""

from __future__ import annotations

from trtspec.errors import TrtspecError

MAX_EVENT_BYTES = 16 << 20
_BOM = b"\xef\xbb\xbf"


class AnswerError(TrtspecError):
    """A server's answer to one request cannot be used; the text says why."""


class EventParser:
    """The parser of the HTML standard for what a completion stream uses: the data of its events.

    Lines end in LF, CRLF or CR; comments and the fields event, id and retry are skipped; several
    data lines of an event are joined by a line feed. Only whole lines are decoded, so a character
    may be split over chunks.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._data: list[str] = []
        self._size = 0
        self._is_first_line = True
        self._skips_lf = False

    def feed(self, chunk: bytes) -> list[str]:
        """The data of all events that this chunk completes, in order.

        Raises:
            AnswerError: a line is not UTF-8, or an event is longer than MAX_EVENT_BYTES.
        """
        if not chunk:
            return []
        if self._skips_lf:
            chunk = chunk.removeprefix(b"\n")
        self._buffer += chunk
        *lines, rest = self._buffer.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        # A CR at the very end was a line's end already; its LF may be the next chunk's first byte.
        self._skips_lf = chunk.endswith(b"\r")
        self._buffer = rest
        self._size += len(chunk)
        events = [data for line in lines if (data := self._line(bytes(line))) is not None]
        if self._size > MAX_EVENT_BYTES:
            raise AnswerError(f"an event of the stream is longer than {MAX_EVENT_BYTES} bytes")
        return events

    def close(self) -> list[str]:
        """The stream has ended: the event that was not followed by a blank line, if there is one.
        (The standard drops it; servers that end with `data: [DONE]` and no more are common.)"""
        last = self._line(bytes(self._buffer)) if self._buffer else None
        self._buffer.clear()
        events = [] if last is None else [last]
        event = self._line(b"")
        return events if event is None else [*events, event]

    def _line(self, line: bytes) -> str | None:
        """Take one line; the event's data if it is the blank line that ends one."""
        if self._is_first_line:
            line, self._is_first_line = line.removeprefix(_BOM), False
        if not line:
            data, self._data, self._size = self._data, [], len(self._buffer)
            return "\n".join(data) if data else None
        field, _, value = line.partition(b":")
        if field == b"data":
            try:
                self._data.append(value.removeprefix(b" ").decode())
            except UnicodeDecodeError as error:
                raise AnswerError(f"the stream is not UTF-8: {error}") from error
        return None
