"""GrammarProcessor: keeps the text of a request within a grammar."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trtspec.errors import RequestError
from trtspec.executor.logits.logits_mask import LogitsMask
from trtspec.guided.output_processor import OutputProcessor
from trtspec.ops.logits_mask import BITS
from trtspec.ops.tree import TokenTree


class GrammarProcessor(OutputProcessor):
    """A matcher positioned after the output, which walks a draft tree for the masks of its rows.

    What a row allows is a function of the tokens before it, so drafts do not change the text. Where
    the grammar allows a text to end, all of the request's end tokens are allowed.
    """

    def __init__(
        self,
        make_matcher: Callable[[], Any],
        vocab_size: int,
        num_ids: int,
        num_prompt_tokens: int,
        end_tokens: Sequence[int],
        begins_after: int | None = None,
    ) -> None:
        """``make_matcher``: returns one at the beginning of a text. ``num_ids``: ids that it knows,
        at least ``vocab_size``. ``begins_after``: anything is allowed before this output token."""
        super().__init__(num_prompt_tokens)
        self._make_matcher, self._matcher = make_matcher, make_matcher()
        self._taken: list[int] = []
        self._may_force = True
        self._begins_after = begins_after
        self._vocab_size = vocab_size
        self._words = -(-num_ids // BITS)
        self._end_tokens = frozenset(end_tokens)
        self._end_bits = _bits(end_tokens, self._words)

    def extend_output(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if self._begins_after is not None:
                if token == self._begins_after:
                    self._begins_after = None
            elif token not in self._end_tokens:
                if not self._matcher.consume_token(token):
                    raise self._failure()
                self._taken.append(token)

    def mask(self, tree: TokenTree) -> LogitsMask:
        # By numpy: torch would wake its threads for a few rows of a large vocabulary.
        allowed = torch.from_numpy(np.zeros((1 + len(tree), self._words), np.int32))
        if self._begins_after is None:
            if not self._fill(allowed[0]):
                raise self._failure()
        else:
            allowed[0] = -1
        for node, is_bound in self._walk(tree):
            if not is_bound:
                allowed[1 + node] = -1
            elif not self._fill(allowed[1 + node]):
                allowed[1 + node] = 0  # the text stops before it, and fails if it goes there
        self._recover()
        return LogitsMask(allowed=allowed)

    def prune(self, tree: TokenTree) -> TokenTree:
        kept = tree.only(sorted(node for node, _ in self._walk(tree)))
        self._recover()
        return kept

    def forced(self, tokens: Sequence[int] = ()) -> Sequence[int]:
        if self._begins_after is not None or not self._may_force:
            return ()
        count = self._matcher.try_consume_tokens(list(tokens))
        found: list[int] = self._matcher.compute_ff_tokens() if count == len(tokens) else []
        self._matcher.rollback(count)
        self._may_force = self._recover()
        return list(takewhile(lambda token: token < self._vocab_size, found))

    def _walk(self, tree: TokenTree) -> Iterator[tuple[int, bool]]:
        """The allowed nodes, each while the matcher is positioned after it, and whether the grammar
        has begun there. End tokens are excluded, as nothing follows them."""
        children: dict[int, list[int]] = {}
        for node, parent in enumerate(tree.parents.tolist()):
            children.setdefault(parent, []).append(node)
        tokens = tree.tokens.tolist()

        def below(parent: int, is_bound: bool) -> Iterator[tuple[int, bool]]:
            for node in children.get(parent, ()):
                token = tokens[node]
                if token in self._end_tokens:
                    continue
                if not is_bound:
                    begins = token == self._begins_after
                    yield node, begins
                    yield from below(node, begins)
                elif self._matcher.try_consume_tokens([token]):
                    yield node, True
                    yield from below(node, True)
                    self._matcher.rollback(1)

        return below(-1, self._begins_after is None)

    def _fill(self, row: Tensor) -> bool:
        """Write what is allowed at the matcher's position; False: it failed."""
        self._matcher.unsafe_compute_mask_ptr(row.data_ptr(), 4 * self._words)
        if self._matcher.is_error():
            return False
        if self._matcher.is_accepting():
            row |= self._end_bits
        return True

    def _recover(self) -> bool:
        """Return to the end of the text if the matcher failed on drafted tokens; whether it had not
        failed. Failures are permanent, so it is replaced by a new one."""
        if not self._matcher.is_error():
            return True
        self._matcher = self._make_matcher()
        self._matcher.consume_tokens(self._taken)
        return False

    def _failure(self) -> RequestError:
        reason = self._matcher.get_error().removesuffix("<non-verbose/>").strip()
        if reason == "NoExtensionBias":
            reason = "no token of the vocabulary continues the text"
        return RequestError(f"the grammar cannot go on: {reason:.500}")


def _bits(tokens: Sequence[int], words: int) -> Tensor:
    """A packed row that allows only these."""
    row = torch.zeros(words, dtype=torch.int64)
    for token in tokens:
        if token // BITS < words:
            row[token // BITS] |= 1 << (token % BITS)
    return row.to(torch.int32)
