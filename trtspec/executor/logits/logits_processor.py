"""LogitsProcessor: what changes the logits of one request before they are sampled."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from trtspec.executor.logits.logits_mask import LogitsMask
from trtspec.ops.tree import TokenTree


class LogitsProcessor(Protocol):
    """Changes the logits of one request before they are sampled.

    The state of a processor is a function of the request's tokens. Each row of a verify step is
    treated by its own text: prompt, output so far, and the draft tokens on the row's path. So a row
    gets the bits that the same text would get without drafts.

    A processor says in `mask` all that can be said before the logits are known; only what depends
    on the logits belongs into `apply`, which follows its mask. Row 0 of a tree is the root's, whose
    text ends with the newest token; row n + 1 is that of node n. Inherited methods do nothing.
    """

    @abstractmethod
    def extend(self, tokens: Sequence[int]) -> None:
        """Take in the tokens by which the request's text grew: the prompt, later the output."""

    def mask(self, tree: TokenTree) -> LogitsMask | None:
        """What happens to the logits of the ``1 + n`` rows of a tree; None: nothing."""
        return None

    def apply(self, logits: Tensor, tree: TokenTree) -> None:
        """Change the float32 ``logits [1 + n, V]`` of a tree's rows in place."""
        return

    def prune(self, tree: TokenTree) -> TokenTree:
        """The tree without nodes that the processor lets never come, and what follows them. Such a
        node is never accepted: pruning changes no text and saves rows."""
        return tree

    def forced(self, tokens: Sequence[int] = ()) -> Sequence[int]:
        """The tokens that must come behind the text and ``tokens``, whatever the logits: drafts
        that are always accepted."""
        return ()
