"""UserProcessor: a user function that changes the logits of a row."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

from torch import Tensor

from trtspec.errors import RequestError
from trtspec.executor.logits.logits_processor import LogitsProcessor
from trtspec.guided.output_processor import OutputProcessor
from trtspec.ops.tree import TokenTree


class UserProcessor(OutputProcessor):
    """Calls ``function(output token ids, logits [V]) -> logits [V]``, or with the prompt's ids
    first, as in vLLM, for each row with the tokens on its own path. It must be a pure function of
    its arguments; then drafts do not change the text."""

    def __init__(self, function: Callable[..., Tensor], prompt: Sequence[int]) -> None:
        super().__init__(len(prompt))
        parameters = inspect.signature(function).parameters.values()
        takes = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        if len(takes) not in (2, 3):
            name = getattr(function, "__name__", repr(function))
            raise RequestError(
                "a logits processor takes (output_ids, logits) or (prompt_ids, output_ids, "
                f"logits), but {name} takes {len(takes)} arguments"
            )
        self._function = function
        self._first = [list(prompt)] if len(takes) == 3 else []
        self._output: list[int] = []

    def extend_output(self, tokens: Sequence[int]) -> None:
        self._output += tokens

    def apply(self, logits: Tensor, tree: TokenTree) -> None:
        for row in range(1 + len(tree)):
            text = [*self._output, *tree.path_tokens(row - 1)]
            logits[row] = self._function(*self._first, text, logits[row].clone())


def as_processor(given: Any, prompt: Sequence[int]) -> LogitsProcessor:
    """A user's processor for one sequence: functions are wrapped; a processor with a state of its
    own (`LogitsProcessor`) is copied."""
    if callable(getattr(given, "extend", None)):
        processor: LogitsProcessor = deepcopy(given)
        return processor
    return UserProcessor(given, prompt)
