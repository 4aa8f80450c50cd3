"""StopChecker: where a text ends, and its characters so far. Both are decided token by token, so
that speculation, which delivers several tokens at once, changes neither."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trtspec.config.sampling import SamplingParams
from trtspec.executor.text.detokenizer import Detokenizer
from trtspec.executor.text.stop_strings import StopStrings
from trtspec.executor.text.token_decoder import TokenDecoder


class StopChecker:
    """Keeps a request's text, and finds the stop strings that end it. Ends by tokens alone are
    decided in C++ (`text_end` of cpp/include/trtspec/text_end.hpp).

    finish_reason: None while it goes on; 'stop' at an EOS token, one of stop_token_ids or a stop
    string; 'length' at max_output_tokens. stop_reason: None, the stop token's id, or the string;
    for a token that one of the stop strings names, that string. The text ends before a stop string
    or stop token (with include_stop_str_in_output, after it). Of several stop strings completed by
    one token the one that begins first counts. Stop strings within the first `min_tokens` tokens do
    not count; end tokens are masked there in the logits.

    Stop strings are searched in the visible text; those that contain a special token, in the text
    with special tokens, visible or not. Without any, tokens are decoded when `text` is read,
    possibly on another thread, while no token is accepted.
    """

    def __init__(
        self,
        params: SamplingParams,
        eos_token_ids: Sequence[int],
        tokenizer: Any = None,
        prompt: Sequence[int] = (),
    ) -> None:
        """`eos_token_ids`: end tokens that are not reported as stop_reason. `tokenizer`: one of
        transformers or of tokenizers, or the TokenDecoder of one. Without it, or with
        params.detokenize False, there is no text, and stop strings cannot be found. The text
        continues `prompt`: a word that begins with a space there keeps it."""
        self.num_tokens = 0
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self._params = params
        self._eos = frozenset(() if params.ignore_eos else eos_token_ids)
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
        """The characters so far that no later token can revoke: a suffix that may be the beginning
        of a stop string is held back until that is decided."""
        self._read()
        return self._stops.text if self.is_finished else self._stops.decided_text

    def accept(self, tokens: Sequence[int], reason: str | None) -> int:
        """Append the tokens that a step emitted, at least one; returns how many of them belong to
        the text.

        reason: why it ends with the last of them, by tokens alone: 'stop', 'length' or None. A stop
        string may end it earlier.
        """
        assert not self.is_finished, "a token after the end"
        last = len(tokens) - 1
        if self._params.stop_strings:
            for i, token in enumerate(tokens):
                self._accept(token, reason if i == last else None)
                if self.finish_reason is not None:
                    return i + 1
            return len(tokens)
        self.num_tokens += len(tokens)
        if self._detokenizer is not None:
            self._unread += [(token, False) for token in tokens[:last]]
            is_text = reason != "stop" or self._params.include_stop_str_in_output
            self._unread.append((tokens[last] if is_text else None, reason is not None))
        self._end(tokens[last], reason)
        return len(tokens)

    def _accept(self, token: int, reason: str | None) -> None:
        """Append one token, checking stop strings."""
        self.num_tokens += 1
        counts = self.num_tokens > self._params.min_tokens
        is_named = token in self._named and counts
        is_end = is_named or reason == "stop"
        keeps_stop = self._params.include_stop_str_in_output
        if self._detokenizer is not None:
            is_text = not is_end or is_named or keeps_stop
            self._unread.append((token if is_text else None, is_end or reason is not None))
        self._read()
        stop = self._stops.find()
        if stop is not None and counts and (is_named or not is_end):
            begin, string = stop
            self._stops.cut(begin, string if keeps_stop else "")
            self.finish_reason, self.stop_reason = "stop", string
        else:
            self._end(token, reason)

    def _end(self, token: int, reason: str | None) -> None:
        """End the text by its newest token, if there is a reason."""
        self.finish_reason = reason
        if reason == "stop" and token not in self._eos:
            self.stop_reason = token

    def _read(self) -> None:
        """Decode pending tokens."""
        unread, self._unread = self._unread, []
        for token, is_last in unread:
            assert self._detokenizer is not None
            text = "" if token is None else self._detokenizer.push(token)
            if is_last:
                text += self._detokenizer.flush()
            self._stops.append(token, text)
