"""LogitsProcessor: changes the logits of one request before they are sampled."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from trtspec.executor.logits.logits_mask import LogitsMask
from trtspec.ops.tree import TokenTree


class LogitsProcessor(Protocol):
    """Changes the logits of one request before they are sampled.

    A processor's state is a function of the request's tokens. Each row of a verify step is treated
    by its own text: prompt, output so far, and the draft tokens on the row's path. So a row gets
    the same bits as the same text would without drafts.

    Everything known before the logits goes into `mask`; only what depends on the logits belongs in
    `apply`, which runs after the mask. Row 0 of a tree is the root's, whose text ends with the
    newest token; row n + 1 is that of node n. Inherited methods do nothing.
    """

    @abstractmethod
    def extend(self, tokens: Sequence[int]) -> None:
        """The request's text grew by these tokens: the prompt, later the output."""

    def mask(self, tree: TokenTree) -> LogitsMask | None:
        """The mask for the ``1 + n`` rows of a tree; None: no change."""
        return None

    def apply(self, logits: Tensor, tree: TokenTree) -> None:
        """Change the float32 ``logits [1 + n, V]`` of a tree's rows in place."""
        return

    def prune(self, tree: TokenTree) -> TokenTree:
        """The tree without nodes that the processor never allows, and their descendants. Such a
        node is never accepted: pruning does not change the text and saves rows."""
        return tree

    def forced(self, tokens: Sequence[int] = ()) -> Sequence[int]:
        """The tokens that must follow the text and ``tokens``, whatever the logits: drafts that are
        always accepted."""
        return ()
