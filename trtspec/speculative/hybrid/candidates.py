"""The nodes of several trees, by their chances; scores are the ln of the chances of paths."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trtspec.ops.tree import TokenTree
from trtspec.speculative.hybrid.costs import Floats


def ranked(trees: Sequence[TokenTree]) -> Floats:
    """[B, W]: the chances of the nodes of each tree, falling; 0 where it has fewer."""
    chances = np.zeros((len(trees), max(map(len, trees))))
    for row, tree in zip(chances, trees, strict=True):
        if len(tree):
            assert tree.scores is not None, "a calibrated tree has scores"
            row[: len(tree)] = np.exp(-np.sort(-tree.scores))
    return chances


def either(a: Floats, b: Floats) -> Floats:
    """Chances of the nodes of two drafters together, as if the better of each rank counted."""
    longer, other = (a, b) if a.shape[1] > b.shape[1] else (b, a)
    both = longer.copy()
    np.maximum(longer[:, : other.shape[1]], other, out=both[:, : other.shape[1]])
    return both


def falling(chances: Floats) -> Floats:
    """All that are above 0 ``[n]``, the best first."""
    flat = -np.sort(-chances, axis=None)
    return flat[: np.count_nonzero(flat)]


def best_of_all(trees: Sequence[TokenTree], chances: Floats, count: int) -> list[TokenTree]:
    """Of the trees, whose nodes have these chances (see `ranked`), the ``count`` best of all."""
    best = np.argsort(-chances, axis=None, kind="stable")[:count] // max(chances.shape[1], 1)
    return TokenTree.best_each(trees, np.bincount(best, minlength=len(trees)).tolist())
