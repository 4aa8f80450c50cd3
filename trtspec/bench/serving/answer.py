"""One streamed answer: its events, when they came, and what they say was generated."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trtspec.bench.serving.sse import AnswerError, EventParser

DONE = "[DONE]"


@dataclass(frozen=True)
class RequestRecord:
    """What one request measured. Times are seconds, `start` on the clock of the run.

    ttft: sending to the first token event; e2e: sending to the last event with a choice; itl: gaps
    between token events. A token event is one that carries text, or that could: a token whose text
    is still held back counts, an event that only opens or ends the answer does not.
    prompt_tokens, output_tokens: the server's own `usage`; None if it gave none.
    text_sha256: of the whole text, to see whether two runs answered the same.
    error: why the request failed; its times and tokens then count nowhere.
    """

    index: int
    start: float
    ttft: float | None = None
    e2e: float | None = None
    itl: tuple[float, ...] = ()
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    text_sha256: str | None = None
    error: str | None = None

    @property
    def tpot(self) -> float | None:
        """Seconds per output token after the first; None where that is not known or not defined."""
        if self.ttft is None or self.e2e is None or (self.output_tokens or 0) < 2:
            return None
        return (self.e2e - self.ttft) / ((self.output_tokens or 0) - 1)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, times in milliseconds after the run's start or the request's."""
        ms = (self.start, self.ttft, self.e2e, self.tpot)
        start, ttft, e2e, tpot = (None if t is None else round(t * 1e3, 3) for t in ms)
        return {
            "index": self.index,
            "start_ms": start,
            "ttft_ms": ttft,
            "tpot_ms": tpot,
            "e2el_ms": e2e,
            "itl_ms": [round(gap * 1e3, 3) for gap in self.itl],
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "finish_reason": self.finish_reason,
            "text_sha256": self.text_sha256,
            "error": self.error,
        }


@dataclass
class AnswerReader:
    """Turns the bytes of a stream and their times of arrival into a record.

    start: when the request was sent, on the clock that `feed` is given the times of.
    """

    index: int
    start: float
    is_done: bool = False
    _parser: EventParser = field(default_factory=EventParser)
    _text: Any = field(default_factory=hashlib.sha256)
    _token_times: list[float] = field(default_factory=list)
    _last: float | None = None
    _prompt_tokens: int | None = None
    _output_tokens: int | None = None
    _finish_reason: str | None = None

    def feed(self, chunk: bytes, now: float) -> None:
        """Bytes that arrived at `now`; what follows the end of the stream is ignored.

        Raises:
            AnswerError: an event cannot be read, or reports an error.
        """
        for data in self._parser.feed(chunk):
            self._event(data, now)

    def close(self, now: float) -> RequestRecord:
        """The stream has ended.

        Raises:
            AnswerError: it ended before the answer did.
        """
        if not self.is_done:
            for data in self._parser.close():
                self._event(data, now)
        return self.record()

    @property
    def is_complete(self) -> bool:
        """The answer has ended, by its finish reason or by the stream's end mark."""
        return self._last is not None and (self.is_done or self._finish_reason is not None)

    def record(self) -> RequestRecord:
        """The complete answer; AnswerError if it is not complete."""
        if self._last is None:
            raise AnswerError("the stream ended without an answer in it")
        if not self.is_complete:
            raise AnswerError(f"the stream broke off after {len(self._token_times)} token events")
        times = self._token_times or [self._last]
        return RequestRecord(
            index=self.index,
            start=self.start,
            ttft=times[0] - self.start,
            e2e=self._last - self.start,
            itl=tuple(b - a for a, b in itertools.pairwise(times)),
            prompt_tokens=self._prompt_tokens,
            output_tokens=self._output_tokens,
            finish_reason=self._finish_reason,
            text_sha256=self._text.hexdigest(),
        )

    def _event(self, data: str, now: float) -> None:
        if self.is_done:
            return
        if data.strip() == DONE:
            self.is_done = True
            return
        try:
            event = json.loads(data)
        except ValueError as error:
            raise AnswerError(f"an event of the stream is not JSON: {data[:80]!r}") from error
        if not isinstance(event, Mapping):
            raise AnswerError(f"an event of the stream is not an object: {data[:80]!r}")
        if event.get("error"):
            raise AnswerError(f"the stream reports an error: {error_message(event)}")
        usage = event.get("usage")
        if isinstance(usage, Mapping):
            self._prompt_tokens = _count(usage.get("prompt_tokens"), self._prompt_tokens)
            self._output_tokens = _count(usage.get("completion_tokens"), self._output_tokens)
        choices = event.get("choices")
        if isinstance(choices, list) and choices and isinstance(choices[0], Mapping):
            self._choice(choices[0], now)

    def _choice(self, choice: Mapping[str, Any], now: float) -> None:
        delta = choice.get("delta")
        delta = delta if isinstance(delta, Mapping) else {}
        pieces = [delta.get(key) for key in ("reasoning_content", "reasoning", "content")]
        text = "".join(p for p in [*pieces, choice.get("text")] if isinstance(p, str))
        self._text.update(text.encode(errors="surrogatepass"))
        reason = choice.get("finish_reason")
        only_opens = delta.get("role")
        if text or delta.get("tool_calls") or not (reason or only_opens):  # see RequestRecord
            self._token_times.append(now)
        if reason:
            self._finish_reason = str(reason)
        self._last = now


def error_message(body: Any) -> str:
    """What the JSON body of an error says, in any of the forms that servers use."""
    for key in ("error", "message", "detail"):
        if isinstance(body, Mapping) and body.get(key):
            return error_message(body[key])
    text = body if isinstance(body, str) else json.dumps(body)
    return " ".join(text.split())[:200]


def _count(value: Any, known: int | None) -> int | None:
    return value if isinstance(value, int) and value >= 0 else known
