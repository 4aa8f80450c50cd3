"""DraftBatch: the draft tokens of a step (cpp/include/trtspec/draft_batch.hpp)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trtspec.errors import ConfigError
from trtspec.ops import native  # noqa: F401  registers the class
from trtspec.ops.tree import TokenTree

# What owns a batch of C++, its address, of each item the nodes and the largest depth, and whether
# the first source proposed all nodes.
_Described = tuple[Any, int, list[int], list[int], bool]
_class: Any = torch.classes.trtspec.DraftBatch
_of: Callable[..., _Described] = _class.of
_cut: Callable[..., _Described] = _class.cut
_pick: Callable[[int, Sequence[int]], _Described] = _class.pick
_best: Callable[[int, Sequence[int]], _Described] = _class.best
_likeliest: Callable[[int, int], _Described] = _class.likeliest
_merge: Callable[[list[int], Sequence[int]], _Described] = _class.merge
_attributed: Callable[[int, int], _Described] = _class.attributed
_by_source: Callable[[int, int, Sequence[int]], tuple[list[int], list[int]]] = _class.by_source
_calibrated: Callable[[int, Tensor, Sequence[float]], _Described] = _class.calibrated
_ranked: Callable[[int], Tensor] = _class.ranked
_outcomes: Callable[..., tuple[int, list[bool], list[int]]] = _class.outcomes
_nodes: Callable[[int, int], list[Tensor]] = _class.nodes


class DraftBatch:
    """The draft nodes of a step's items, in order, each with a token, a parent, a score (see
    `TokenTree`) and its source: which member of a union proposed it. Immutable. Equal if all trees
    are.

    counts: nodes of each item. max_depths: the depth of its deepest one; 0 without nodes. address:
    of the C++ batch, for native calls, valid as long as this one lives.
    """

    def __init__(self, described: _Described) -> None:
        """From the result of a native call. See `of` to make one from trees."""
        self._owner, self.address, self.counts, self.max_depths, self._has_one_source = described
        self._trees: dict[int, TokenTree] = {}  # those that were asked for

    @classmethod
    def of(cls, trees: Sequence[TokenTree | None]) -> DraftBatch:
        """The trees of all items of a step; None: no nodes."""
        whole = [TokenTree.empty() if tree is None else tree for tree in trees]
        if not any(map(len, whole)):
            return cls.none(len(whole))
        columns = zip(*((tree.tokens, tree.parents, tree.scores) for tree in whole), strict=True)
        nodes = [torch.from_numpy(np.concatenate(column)) for column in columns]
        return cls(_of([len(tree) for tree in whole], *nodes))

    @classmethod
    def none(cls, count: int) -> DraftBatch:
        """No nodes, for that many items."""
        return _none(count)

    @classmethod
    def cut(
        cls,
        places: Sequence[int],
        nodes: tuple[Tensor, Tensor, Tensor],
        ends: Sequence[Sequence[int]],
        max_depths: Sequence[int],
        max_nodes: Sequence[int],
    ) -> DraftBatch:
        """What requests can use of a rollout's trees, ``tokens i64``, ``parents i32`` and ``scores
        f32 [R, n]`` on the host. Item i takes those of row ``places[i]``; -1: no nodes.

        From each row, the ``max_nodes`` best nodes by score, earlier ones first among equals. A
        node's score must not exceed its parent's. Left out are nodes with score -inf, those deeper
        than ``max_depths``, and ``ends`` with all descendants. ConfigError for arrays that are not
        trees.
        """
        columns = [column.contiguous() for column in nodes]
        try:
            return cls(_cut(places, *columns, ends, max_depths, max_nodes))
        except ValueError as error:
            raise ConfigError(str(error)) from None

    @classmethod
    def merge(
        cls, batches: Sequence[DraftBatch], sources: Sequence[int] | None = None
    ) -> DraftBatch:
        """The union of drafts of the same items by token path: a path that occurs several times is
        kept once, with its highest score. Nodes keep the order of first occurrence, so those of an
        earlier batch come first, and have the source of the batch that had them first: ``sources``,
        0 to 254 each; by default, their places."""
        given = range(len(batches)) if sources is None else sources
        return cls(_merge([batch.address for batch in batches], [*given]))

    def attributed(self, proposed: DraftBatch) -> DraftBatch:
        """The drafts with the sources that the same paths have in other drafts of these items;
        other paths have none."""
        return DraftBatch(_attributed(self.address, proposed.address))

    def pick(self, places: Sequence[int]) -> DraftBatch:
        """The items at these places; -1: one without nodes."""
        return DraftBatch(_pick(self.address, places))

    def spread(self, places: Sequence[int], count: int) -> DraftBatch:
        """That many items, of which those at ``places`` are these; the others have no nodes."""
        if len(places) == count:
            return self
        own = [-1] * count
        for item, place in enumerate(places):
            own[place] = item
        return self.pick(own)

    def best(self, counts: Sequence[int]) -> DraftBatch:
        """The ``counts[i]`` best nodes of each item by score, earlier ones first among equals."""
        if all(count <= most for count, most in zip(self.counts, counts, strict=True)):
            return self
        return DraftBatch(_best(self.address, counts))

    def likeliest(self, count: int) -> DraftBatch:
        """The ``count`` best nodes of all items together; among equals, those of earlier items."""
        return self if sum(self.counts) <= count else DraftBatch(_likeliest(self.address, count))

    def calibrated(self, gains: Tensor, exponents: Sequence[float]) -> DraftBatch:
        """The same nodes with other scores: along the path to a node, the sum of ``gains f32
        [num_depths, num_levels]`` at the cells of its nodes, times the exponent of the item.

        The row of a node's cell is its depth (a child of the root has row 0; what is deeper than
        the table, the last row). The column is the probability p that the node has given its parent
        by the scores, in levels that are finer towards 1: 4 log2(1 - 4 log2 p), rounded down; the
        last column has all that is less likely.
        """
        return DraftBatch(_calibrated(self.address, gains, exponents))

    @property
    def chances(self) -> npt.NDArray[np.float64]:
        """``[B, W]``: the path probabilities of each item's nodes by their scores, descending; 0 if
        it has fewer than W nodes."""
        chances: npt.NDArray[np.float64] = np.exp(_ranked(self.address).numpy()).astype(np.float64)
        return chances

    def outcomes(
        self, item: int, tokens: Sequence[int], verified: DraftBatch | None, table: tuple[int, int]
    ) -> tuple[int, list[bool], list[int]]:
        """What became of an item's nodes once the target emitted `tokens`.

        The text follows the tree as far as nodes carry it. Returns how many rows on that path have
        children; for all these children, in path order, whether each is the one that carries the
        next token; and their cells in a table of that size (see `calibrated`). The outcome of
        deeper nodes is unknown. With `verified`, only the paths that the item has in this batch
        count.
        """
        only = 0 if verified is None else verified.address
        return _outcomes(self.address, item, tokens, only, *table)

    def by_source(self, item: int, rows: Sequence[int]) -> tuple[list[int], list[int]]:
        """For each source, how many nodes of an item it proposed, and how many of the accepted
        ``rows`` these are (0 the root's, then those of nodes)."""
        if self._has_one_source:
            count = self.counts[item]
            return ([count], [len(rows) - 1]) if count else ([], [])
        return _by_source(self.address, item, rows)

    def sources(self, item: int) -> list[int | None]:
        """The source of each node of an item; None for a node that none proposed."""
        rows = range(1, self.counts[item] + 1)
        found = [self.by_source(item, [0, row])[1] for row in rows]
        return [kept.index(1) if 1 in kept else None for kept in found]

    def __len__(self) -> int:
        """Items."""
        return len(self.counts)

    def __getitem__(self, item: int) -> TokenTree:
        """The nodes of an item as a tree."""
        tree = self._trees.get(item)
        if tree is None:
            made = TokenTree.empty()
            if self.counts[item]:
                made = TokenTree.of_columns(*(x.numpy() for x in _nodes(self.address, item)))
            tree = self._trees[item] = made
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
    tokens, parents = torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int32)
    return DraftBatch(_of([0] * count, tokens, parents, torch.zeros(0)))
