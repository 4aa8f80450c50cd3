"""DraftBatch: the draft tokens of a step (cpp/include/trtspec/draft_batch.hpp)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import torch

from trtspec.ops import native  # noqa: F401  registers the class
from trtspec.ops.tree import TokenTree

# What owns a batch of C++, its address, and of each item the nodes and the largest depth.
_Described = tuple[Any, int, list[int], list[int]]
_class: Any = torch.classes.trtspec.DraftBatch
_of: Callable[[list[int]], _Described] = _class.of
_pick: Callable[[int, Sequence[int]], _Described] = _class.pick
_tree: Callable[[int, int], tuple[Any, int, int, int]] = _class.tree


class DraftBatch:
    """The draft nodes of the items of a step, in their order; immutable. Equal if all trees are.

    counts: nodes of each item. max_depths: the depth of its deepest one; 0 without nodes. address:
    of the batch of C++, for native calls, as long as this one lives.
    """

    def __init__(self, described: _Described) -> None:
        """Of what a native call made. To make one of trees, see `of`."""
        self._owner, self.address, self.counts, self.max_depths = described
        self._trees: list[TokenTree | None] = [None] * len(self.counts)

    @classmethod
    def of(cls, trees: Sequence[TokenTree | None]) -> DraftBatch:
        """The trees of all items of a step; None: no nodes. Where a tree has no scores, each node
        is as likely as not, once its parent is right."""
        whole = [TokenTree.empty() if tree is None else tree for tree in trees]
        return cls(_of([tree.address for tree in whole]))

    @classmethod
    def none(cls, count: int) -> DraftBatch:
        """No nodes, for so many items."""
        return _none(count)

    def pick(self, places: Sequence[int]) -> DraftBatch:
        """The items at these places; -1: one without nodes."""
        return DraftBatch(_pick(self.address, places))

    def __len__(self) -> int:
        """Items."""
        return len(self.counts)

    def __getitem__(self, item: int) -> TokenTree:
        """The nodes of an item as a tree."""
        tree = self._trees[item]
        if tree is None:
            tree = self._trees[item] = TokenTree.of_native(_tree(self.address, item))
        return tree

    def __iter__(self) -> Iterator[TokenTree]:
        return map(self.__getitem__, range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DraftBatch) and [*self] == [*other]

    def __hash__(self) -> int:
        return hash((*self,))

    def __repr__(self) -> str:
        return f"DraftBatch({[*self]})"


@lru_cache(maxsize=64)
def _none(count: int) -> DraftBatch:
    return DraftBatch.of([None] * count)
