"""GrammarCompiler: compiles grammars for one tokenizer, each once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property, partial
from typing import Any

from trtspec.config.guided_decoding import GuidedDecodingParams
from trtspec.errors import RequestError
from trtspec.guided.grammar import grammar_of
from trtspec.optional import import_optional

_KEPT = 64
"""How many compiled grammars are kept: a service has few schemas, and each takes up to some
megabytes."""

_LIMITS = {"initial_lexer_fuel": 2_000_000, "max_lexer_states": 50_000, "verbose_errors": False}
"""About 40 ms of building a regex, and 100 MB of its states: whatever needs more is blowing up.
They count work, not time, so that the same grammar is refused on every machine."""

_STACK = 512 * 2**20
"""Bytes. The library recurses along references, 8 KB a level, and an overflow ends the process.
This suffices for any chain within MAX_GRAMMAR_CHARS; memory is used only as needed."""

_starting = threading.Lock()


class GrammarCompiler:
    """Makes matchers; safe to call from any thread. The library and the tokenizer's vocabulary are
    loaded at the first call."""

    def __init__(self, tokenizer: Any, vocab_size: int, ends: Sequence[int]) -> None:
        """``vocab_size``: of the model. ``ends``: the ids that end a text."""
        ids = set() if tokenizer is None else set(tokenizer.get_vocab().values())
        self.num_ids = max(vocab_size, 1 + max(ids, default=0))
        """That masks have bits for: a tokenizer may know more tokens than its model."""
        self._tokenizer = tokenizer
        self._ends = [token for token in ends if token in ids]  # a processor adds the others
        self._lock = threading.Lock()
        self._vocabulary: Any = None
        self._compiled: OrderedDict[GuidedDecodingParams, Future[Any]] = OrderedDict()

    def matcher(self, params: GuidedDecodingParams) -> Any:
        """A new llguidance matcher at the beginning of a text.

        Raises:
            ConfigError: the library is not installed.
            RequestError: the grammar is invalid or exceeds a limit; there is no tokenizer, or one
                that the library cannot read.
        """
        library = import_optional("llguidance", "guided decoding", "trtspec[grammar]")
        with self._lock:
            self._vocabulary = self._vocabulary or self._read_vocabulary()
            compiled = self._compiled.get(params)
            if compiled is None:
                # Beside the lock: others need not wait for a slow grammar, but equals do.
                compiled = _on_deep_stack(partial(self._compile, params, library))
                self._compiled[params] = compiled
                while len(self._compiled) > _KEPT:
                    self._compiled.popitem(last=False)
            self._compiled.move_to_end(params)
        try:
            return compiled.result().deep_copy()
        except RequestError as error:
            with self._lock:
                self._compiled.pop(params, None)
            raise RequestError(str(error)) from None  # the error itself is of all who wait

    def _compile(self, params: GuidedDecodingParams, library: Any) -> Any:
        grammar = grammar_of(params, library, self._special)
        limits = library.LLParserLimits(**_LIMITS)
        compiled = library.LLMatcher(self._vocabulary, grammar, log_level=0, limits=limits)
        if compiled.is_error():
            raise RequestError(f"the grammar is refused: {compiled.get_error():.500}")
        return compiled

    @cached_property
    def _special(self) -> dict[str, int]:
        """The tokens that are no text to the library: those that are said to be special, and others
        that were added and look like it."""
        added = self._tokenizer.added_tokens_decoder.items()
        is_special = self._vocabulary.is_special_token
        return {str(a): i for i, a in added if i < self.num_ids and is_special(i)}

    def _read_vocabulary(self) -> Any:
        if self._tokenizer is None:
            raise RequestError("guided decoding needs a tokenizer, but none was loaded")
        if not self._ends:
            raise RequestError(
                "guided decoding needs a token of the tokenizer that ends the text, and this model "
                "names none"
            )
        hf = import_optional("llguidance.hf", "guided decoding", "trtspec[grammar]")
        try:
            return hf.from_tokenizer(self._tokenizer, n_vocab=self.num_ids, eos_token=self._ends)
        except Exception as error:
            raise RequestError(
                f"guided decoding cannot read this tokenizer ({error}); it must have a "
                "tokenizer.json"
            ) from error


def _on_deep_stack(act: Callable[[], Any]) -> Future[Any]:
    """What ``act`` will return, called in a thread of its own."""
    pool = ThreadPoolExecutor(1)
    with _starting:  # the size is the process's, for whichever thread starts next
        usual = threading.stack_size(_STACK)
        try:
            called = pool.submit(act)
        finally:
            threading.stack_size(usual)
    pool.shutdown(wait=False)
    return called
