"""The nodes of several trees, by their chances; scores are the ln of the chances of paths."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from trtspec.ops.tree import TokenTree

Floats = npt.NDArray[np.float64]


def merged(drafts: Sequence[Sequence[TokenTree]]) -> list[TokenTree]:
    """The unions, request by request, of the trees of each drafter."""
    if len(drafts) == 1:
        return list(drafts[0])
    return [TokenTree.merge(parts) for parts in zip(*drafts, strict=True)]


def ranked(trees: Sequence[TokenTree]) -> Floats:
    """[B, W]: the chances of the nodes of each tree, falling; 0 where it has fewer."""
    falling = np.full((len(trees), max(map(len, trees))), np.inf)
    for row, tree in zip(falling, trees, strict=True):
        if len(tree):
            row[: len(tree)] = -scores(tree)
    falling.sort(axis=1)
    chances: Floats = np.exp(-falling)
    return chances


def share(
    trees: Sequence[TokenTree], worths: Floats | None, count: Callable[[list[float]], int]
) -> list[int]:
    """How many nodes of each tree are among the best of all. ``worths [B]``: of a token of each
    request; None: all the same. ``count``: how many are, by what nodes are worth, falling."""
    sizes = [len(tree) for tree in trees]
    found: list[float] = []
    owners: list[int] = []
    for owner, tree in enumerate(trees):
        own = scores(tree).tolist() if len(tree) else []
        if worths is not None:
            added = math.log(worths[owner])
            own = [score + added for score in own]
        found += own
        owners += [owner] * len(own)
    order = sorted(range(len(found)), key=found.__getitem__, reverse=True)
    best = count([math.exp(found[i]) for i in order])
    if best == len(order):
        return sizes
    counts = [0] * len(trees)
    for node in order[:best]:
        counts[owners[node]] += 1
    return counts


def scores(tree: TokenTree) -> npt.NDArray[np.float32]:
    """Those of a tree that has some."""
    found = tree.scores
    assert found is not None, "a calibrated tree has scores"
    return found
