"""Where a text ends, and its characters so far: decided token by token, so that speculation, which
delivers several tokens at once, never changes either."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trtspec.config.sampling import SamplingParams
from trtspec.executor.detokenizer import Detokenizer
from trtspec.executor.stop_strings import StopStrings
from trtspec.executor.token_decoder import TokenDecoder


class StopChecker:
    """Decides after each token whether the text ends there.

    finish_reason: None while it goes on; 'stop' at an EOS token, one of stop_token_ids or a stop
    string; 'length' at max_output_tokens. stop_reason: None, the stop token's id, or the string;
    for a token that one of the stop strings names, that string. After a stop string the text ends
    before that string, after a stop token before that token (with include_stop_str_in_output, after
    either). Of several stop strings completed by one token the one that begins first counts. Stop
    strings within the first `min_tokens` tokens do not count; that no end token comes there is seen
    to in the logits.

    Stop strings are looked for in the text as it is shown; those that hold a special token, in the
    text with special tokens, shown or not. Without any, tokens are decoded when `text` is asked
    for: on another thread perhaps, while no token is accepted.
    """

    def __init__(
        self,
        params: SamplingParams,
        eos_token_ids: Sequence[int],
        max_output_tokens: int,
        tokenizer: Any = None,
        prompt: Sequence[int] = (),
    ) -> None:
        """`tokenizer`: one of transformers or of tokenizers, or the TokenDecoder of one. Without
        it, or with params.detokenize False, there is no text, and stop strings cannot be found. The
        text goes on behind `prompt`: a word that begins with a space there keeps it."""
        self.num_tokens = 0
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self._params = params
        self._max_output_tokens = max_output_tokens
        self._eos = frozenset(() if params.ignore_eos else eos_token_ids)
        self._stop_ids = frozenset(params.stop_token_ids)
        self._detokenizer: Detokenizer | None = None
        self._unread: list[tuple[int | None, bool]] = []  # tokens to decode, None for no text
        special: Mapping[int, str] = {}
        if tokenizer is not None and params.detokenize:
            decoder = TokenDecoder.of(tokenizer)
            self._detokenizer = Detokenizer(decoder, params.skip_special_tokens, prompt)
            special = decoder.special
        # The special tokens that are stop strings themselves.
        self._named = {token for token, name in special.items() if name in params.stop_strings}
        self._stops = StopStrings(
            params.stop_strings, special if params.skip_special_tokens else {}
        )

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def text(self) -> str:
        """The characters so far that no later token can take back: an end that may be the beginning
        of a stop string is held back until that is decided."""
        self._read()
        return self._stops.text if self.is_finished else self._stops.decided_text

    def accept(self, token: int) -> str | None:
        """Append one emitted token; the finish reason if the text ends with it."""
        assert not self.is_finished, "a token after the end"
        self.num_tokens += 1
        counts = self.num_tokens > self._params.min_tokens
        is_named = token in self._named and counts
        is_end = is_named or token in self._eos or token in self._stop_ids
        is_last = is_end or self.num_tokens >= self._max_output_tokens
        keeps_stop = self._params.include_stop_str_in_output
        is_text = not is_end or is_named or keeps_stop
        if self._detokenizer is not None:
            self._unread.append((token if is_text else None, is_last))
        if self._params.stop_strings:
            self._read()
        stop = self._stops.find()
        if stop is not None and counts and (is_named or not is_end):
            begin, string = stop
            self._stops.cut(begin, string if keeps_stop else "")
            self.finish_reason, self.stop_reason = "stop", string
        elif is_end:
            self.finish_reason = "stop"
            self.stop_reason = None if token in self._eos else token
        elif is_last:
            self.finish_reason = "length"
        return self.finish_reason

    def _read(self) -> None:
        """Decode the tokens that were not yet."""
        unread, self._unread = self._unread, []
        for token, is_last in unread:
            assert self._detokenizer is not None
            text = "" if token is None else self._detokenizer.push(token)
            if is_last:
                text += self._detokenizer.flush()
            self._stops.append(token, text)
