"""Where a text ends, and its characters so far: decided token by token, so that speculation, which
delivers several tokens at once, never changes either."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trtspec.config.sampling import SamplingParams
from trtspec.executor.detokenizer import Detokenizer


class StopChecker:
    """Decides after each token whether the text ends there.

    finish_reason: None while it goes on; 'stop' at an EOS token, one of stop_token_ids or a stop
    string; 'length' at max_output_tokens. stop_reason: None, the stop token's id, or the string.
    After a stop string the text ends before that string, after a stop token before that token
    (with include_stop_str_in_output, after either). Of several stop strings completed by one token
    the one that begins first counts. Stop strings within the first `min_tokens` tokens do not
    count; that no end token comes there is seen to in the logits.
    """

    def __init__(
        self,
        params: SamplingParams,
        eos_token_ids: Sequence[int],
        max_output_tokens: int,
        tokenizer: Any = None,
        prompt: Sequence[int] = (),
    ) -> None:
        """Without a `tokenizer`, or with params.detokenize False, there is no text, and stop
        strings cannot be found. The text goes on behind `prompt`: a word that begins with a space
        there keeps it."""
        self.num_tokens = 0
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self._params = params
        self._max_output_tokens = max_output_tokens
        self._eos = frozenset(() if params.ignore_eos else eos_token_ids)
        self._stop_ids = frozenset(params.stop_token_ids)
        self._stops = params.stop_strings
        self._detokenizer: Detokenizer | None = None
        if tokenizer is not None and params.detokenize:
            self._detokenizer = Detokenizer(tokenizer, params.skip_special_tokens, prompt)
        self._text = ""
        self._searched = 0

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def text(self) -> str:
        """The characters so far that no later token can take back: an end that may be the beginning
        of a stop string is held back until that is decided."""
        if self.is_finished:
            return self._text
        return self._text[: len(self._text) - self._num_undecided()]

    def accept(self, token: int) -> str | None:
        """Append one emitted token; the finish reason if the text ends with it."""
        assert not self.is_finished, "a token after the end"
        self.num_tokens += 1
        if token in self._eos or token in self._stop_ids:
            self._append(token if self._params.include_stop_str_in_output else None, is_last=True)
            self.finish_reason = "stop"
            self.stop_reason = None if token in self._eos else token
            return self.finish_reason
        is_last = self.num_tokens >= self._max_output_tokens
        self._append(token, is_last)
        stop = self._find_stop()
        if stop is not None:
            begin, string = stop
            kept = begin + len(string) * self._params.include_stop_str_in_output
            self._text = self._text[:kept]
            self.finish_reason, self.stop_reason = "stop", string
        elif is_last:
            self.finish_reason = "length"
        return self.finish_reason

    def _append(self, token: int | None, is_last: bool) -> None:
        if self._detokenizer is None:
            return
        if token is not None:
            self._text += self._detokenizer.push(token)
        if is_last:
            self._text += self._detokenizer.flush()

    def _find_stop(self) -> tuple[int, str] | None:
        """Where a stop string begins, and which, among those that end in new text."""
        searched, self._searched = self._searched, len(self._text)
        if self.num_tokens <= self._params.min_tokens:
            return None
        hits = []
        for stop in self._stops:
            position = self._text.find(stop, max(searched - len(stop) + 1, 0))
            if position >= 0:
                hits.append((position, stop))
        return min(hits, key=lambda hit: hit[0]) if hits else None

    def _num_undecided(self) -> int:
        """Length of the longest end of the text that begins a stop string."""
        lengths = (
            n for stop in self._stops for n in range(1, len(stop)) if self._text.endswith(stop[:n])
        )
        return max(lengths, default=0)
