"""Guides: the processors that a request's options ask for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

from trtspec.config.sampling import SamplingParams
from trtspec.errors import RequestError
from trtspec.executor.logits.logits_processor import LogitsProcessor
from trtspec.guided.compiler import GrammarCompiler
from trtspec.guided.grammar_processor import GrammarProcessor
from trtspec.guided.thinking_budget import ThinkingBudget, ThinkingMarks
from trtspec.guided.user_processor import as_processor

_MARKS = ("<think>", "</think>")


class Guides:
    """Makes processors that follow requests' texts, for one tokenizer; safe to call from any
    thread."""

    def __init__(self, tokenizer: Any, vocab_size: int, ends: Sequence[int]) -> None:
        self._tokenizer, self._vocab_size, self._ends = tokenizer, vocab_size, ends

    # Both read the whole vocabulary, which no model shall wait for that is never asked for a form.
    @cached_property
    def _compiler(self) -> GrammarCompiler:
        return GrammarCompiler(self._tokenizer, self._vocab_size, self._ends)

    @cached_property
    def _marks(self) -> ThinkingMarks | None:
        return _find_marks(self._tokenizer, self._vocab_size)

    def prepare(self, params: SamplingParams) -> None:
        """Compile what `processors` needs, which may take a while. RequestError: the grammar is
        invalid."""
        if params.guided_decoding is not None:
            self._compiler.matcher(params.guided_decoding)

    def processors(
        self, params: SamplingParams, prompt: Sequence[int], end_tokens: Sequence[int]
    ) -> tuple[LogitsProcessor, ...]:
        """The processors of one sequence, in order: the user's, the thinking budget, and the
        grammar, which begins after the reasoning that the prompt has opened.

        Raises:
            RequestError: one cannot be made.
            ConfigError: a package is missing.
        """
        found = [as_processor(given, prompt) for given in params.logits_processors]
        if params.thinking_budget is None and params.guided_decoding is None:
            return tuple(found)
        marks = self._marks
        if params.thinking_budget is not None:
            if marks is None:
                raise RequestError(
                    f"thinking_budget={params.thinking_budget} needs {' and '.join(_MARKS)} as "
                    "tokens of the model, which this one has not"
                )
            is_free = params.guided_decoding is None  # within a form, marks are its text
            limit = params.thinking_budget
            found.append(ThinkingBudget(limit, marks, self._vocab_size, prompt, is_free))
        if params.guided_decoding is not None:
            make_matcher = partial(self._compiler.matcher, params.guided_decoding)
            begins = marks.end if marks is not None and marks.is_open_after(prompt) else None
            sizes = self._vocab_size, self._compiler.num_ids, len(prompt)
            found.append(GrammarProcessor(make_matcher, *sizes, end_tokens, begins_after=begins))
        return tuple(found)


def _find_marks(tokenizer: Any, vocab_size: int) -> ThinkingMarks | None:
    """The reasoning marks; None unless both are tokens of the model."""
    vocabulary = {} if tokenizer is None else tokenizer.get_vocab()
    ids = [vocabulary.get(mark, vocab_size) for mark in _MARKS]
    return ThinkingMarks(*ids) if max(ids) < vocab_size else None
