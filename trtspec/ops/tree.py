"""TokenTree: the draft tokens of one request, as a value (cpp/include/trtspec/token_tree.hpp).

A chain is a tree of width one. Row 0 of a verify step is the root (the newest accepted token, not
part of the tree); node n is row n + 1.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trtspec.errors import ConfigError
from trtspec.ops import native  # noqa: F401  registers the class

# What owns a tree of C++, its address, its nodes and its largest depth.
_Described = tuple[Any, int, int, int]
_class: Any = torch.classes.trtspec.TokenTree
_make: Callable[[Sequence[int], Sequence[int], Tensor | None], _Described] = _class.make
_chain: Callable[[Sequence[int]], _Described] = _class.chain
_merge: Callable[[list[int]], _Described] = _class.merge
_best_of: Callable[..., list[_Described]] = _class.best_of
_best_each: Callable[[list[int], list[int]], list[_Described]] = _class.best_each
_calibrated: Callable[..., tuple[list[_Described], Tensor]] = _class.calibrated
_rows: Callable[[int], Tensor] = _class.rows
_without: Callable[[int, list[int]], _Described] = _class.without
_scores: Callable[[int], Tensor] = _class.scores
_outcomes: Callable[..., tuple[list[int], list[bool], list[int]]] = _class.outcomes
_path: Callable[[int, int], list[int]] = _class.path


class TokenTree:
    """Immutable draft tree: `tokens` int64[n] and `parents` int32[n], both read-only.

    parents[i] is the index of node i's parent, -1 for a child of the root; a parent comes before
    its children. Two trees are equal if both arrays are. ConfigError if the arrays do not fit.

    A tree may carry scores: of each node, ln of the probability that its drafter gives the path to
    it. They follow the nodes through all that makes trees of trees.

    max_depth: depth of the deepest node; 0 without nodes. address: of the tree of C++, for native
    calls, as long as this one lives. Arrays are made when they are first asked for: most steps ask
    for none.
    """

    max_depth: int
    address: int
    _size: int

    def __init__(
        self,
        tokens: Sequence[int] | npt.NDArray[Any],
        parents: Sequence[int] | npt.NDArray[Any],
        scores: npt.NDArray[np.float32] | None = None,
    ) -> None:
        values = None if scores is None else torch.from_numpy(scores)
        try:
            self._set(_make(_listed(tokens), _listed(parents), values))
        except ValueError as error:
            raise ConfigError(str(error)) from None
        except RuntimeError as error:
            raise _no_integers(tokens, parents) from error

    def _set(self, described: _Described) -> None:
        own = self.__dict__
        own["_owner"], own["address"], own["_size"], own["max_depth"] = described

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"TokenTree is immutable, {name} cannot be set")

    @classmethod
    def of_native(cls, described: tuple[Any, int, int, int]) -> TokenTree:
        """A tree that another native call made: its owner, address, nodes and largest depth."""
        tree = cls.__new__(cls)
        tree._set(described)
        return tree

    @classmethod
    def chain(cls, tokens: Sequence[int] | npt.NDArray[Any]) -> TokenTree:
        """Node i is the child of node i - 1."""
        if not len(tokens):
            return _EMPTY
        try:
            return cls.of_native(_chain(_listed(tokens)))
        except RuntimeError as error:
            raise _no_integers(tokens, ()) from error

    @classmethod
    def empty(cls) -> TokenTree:
        """No nodes: the verify step feeds the root alone."""
        return _EMPTY

    @classmethod
    def merge(cls, trees: Iterable[TokenTree]) -> TokenTree:
        """The union by token path: a path that several trees hold appears once. Nodes keep the
        order in which they first come, so an earlier tree's nodes come first. The score of a path
        is the highest that it has; there are scores if all trees with nodes have them."""
        kept = list(trees)
        return cls.of_native(_merge([tree.address for tree in kept]))

    @classmethod
    def best_of(
        cls,
        sizes: Sequence[int],
        tokens: Tensor,
        parents: Tensor,
        scores: Tensor,
        unwanted: Sequence[Collection[int]],
        max_depths: Sequence[int],
        max_nodes: Sequence[int],
    ) -> list[TokenTree]:
        """Of the trees of several requests, which lie one behind the other in ``tokens i64``,
        ``parents i32`` and ``scores f32`` with ``sizes[i]`` nodes each, the trees of the
        ``max_nodes[i]`` best nodes by score; of equal ones the earlier.

        The score of a node must not exceed its parent's. Left out are nodes of score -inf, those
        deeper than ``max_depths[i]``, and ``unwanted[i]`` tokens with all that follows. ConfigError
        for arrays that are no trees."""
        lists = [list(each) for each in unwanted]
        try:
            found = _best_of(sizes, tokens, parents, scores, lists, max_depths, max_nodes)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        return [cls.of_native(described) for described in found]

    @classmethod
    def best_each(cls, trees: Sequence[TokenTree], counts: Sequence[int]) -> list[TokenTree]:
        """The trees of the ``counts[i]`` best nodes of each, by its own scores."""
        best = [tree if count > 0 else _EMPTY for tree, count in zip(trees, counts, strict=True)]
        cut = [i for i, tree in enumerate(best) if counts[i] < len(tree)]
        if cut:
            found = _best_each([best[i].address for i in cut], [counts[i] for i in cut])
            for i, described in zip(cut, found, strict=True):
                best[i] = cls.of_native(described)
        return best

    @classmethod
    def calibrated(
        cls, trees: Sequence[TokenTree], gains: Tensor, exponents: Sequence[float]
    ) -> list[TokenTree]:
        """The trees with other scores: along the path to a node, the sum of ``gains f32
        [num_depths, num_levels]`` at the cells of its nodes, times the exponent of the tree.

        The row of a node's cell is its depth (a child of the root has row 0; what is deeper than
        the table, the last row). The column is the probability p that the node has given its parent
        by the scores (1/2 where there are none), in levels that are finer towards 1:
        4 log2(1 - 4 log2 p), rounded down; the last column has all that is less likely.
        """
        found, scores = _calibrated([tree.address for tree in trees], gains, exponents)
        made, begin, values = [], 0, scores.numpy()
        values.flags.writeable = False
        for described in found:
            tree = cls.of_native(described)
            tree.__dict__["scores"] = values[begin : begin + len(tree)]
            begin += len(tree)
            made.append(tree)
        return made

    @staticmethod
    def ranked(trees: Sequence[TokenTree]) -> npt.NDArray[np.float64]:
        """[B, W]: the probabilities of the paths to the nodes of each tree by its scores, falling;
        0 where it has fewer than the widest."""
        found = np.zeros((len(trees), max(map(len, trees))))
        for row, tree in zip(found, trees, strict=True):
            if len(tree):
                assert tree.scores is not None, "what is ranked has scores"
                row[: len(tree)] = np.exp(-np.sort(-tree.scores))
        return found

    def __len__(self) -> int:
        return self._size

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TokenTree):
            return NotImplemented
        return np.array_equal(self.rows, other.rows)

    def __hash__(self) -> int:
        return hash(self.rows.tobytes())

    def __repr__(self) -> str:
        return f"TokenTree(tokens={self.tokens.tolist()}, parents={self.parents.tolist()})"

    def __reduce__(self) -> tuple[type[TokenTree], tuple[Any, ...]]:
        return TokenTree, (self.tokens.tolist(), self.parents.tolist(), self.scores)

    @cached_property
    def rows(self) -> npt.NDArray[np.int64]:
        """int64[3, n+1], read-only: of every row, the root first, its token, its parent's row and
        its depth; 0, -1 and 0 of the root."""
        rows: npt.NDArray[np.int64] = _rows(self.address).numpy()
        rows.flags.writeable = False
        return rows

    @cached_property
    def tokens(self) -> npt.NDArray[np.int64]:
        """int64[n], read-only."""
        return self.rows[0, 1:]

    @cached_property
    def parents(self) -> npt.NDArray[np.int32]:
        """int32[n], read-only; -1 for a child of the root."""
        parents: npt.NDArray[np.int32] = (self.rows[1, 1:] - 1).astype(np.int32)
        parents.flags.writeable = False
        return parents

    @cached_property
    def scores(self) -> npt.NDArray[np.float32] | None:
        """float32[n], read-only: ln of the probability of the path to each node; None without."""
        scores: npt.NDArray[np.float32] = _scores(self.address).numpy()
        scores.flags.writeable = False
        return scores if len(scores) == len(self) else None

    @cached_property
    def depths(self) -> npt.NDArray[np.int32]:
        """int32[n], read-only; a child of the root has depth 1."""
        depths: npt.NDArray[np.int32] = self.rows[2, 1:].astype(np.int32)
        depths.flags.writeable = False
        return depths

    def without(self, tokens: Iterable[int]) -> TokenTree:
        """Without the nodes that carry one of `tokens`, and their descendants. Verifying a token
        that ends the text gains nothing: its parent's own row already says whether it comes."""
        unwanted = list(tokens)
        if not (unwanted and self._size):
            return self
        described: _Described = _without(self.address, unwanted)
        return self if described[2] == self._size else self.of_native(described)

    def outcomes(
        self, tokens: Sequence[int], verified: TokenTree | None, table: tuple[int, int]
    ) -> tuple[list[int], list[bool], list[int]]:
        """What became of the nodes once the target emitted `tokens`.

        The text goes down the tree as far as nodes carry it. Returns the children of the rows on
        that way, in its order, of each whether it is the one that carries the next token, and its
        cell in a table of that size (see `calibrated`); of deeper nodes it is not known. With
        `verified`, only the paths that this tree holds are walked and reported.
        """
        only = 0 if verified is None else verified.address
        return _outcomes(self.address, tokens, only, *table)

    def row_parents(self) -> npt.NDArray[np.int32]:
        """int32[n+1]: parent row of each row; the root's is -1, the root's children's is 0."""
        parents: npt.NDArray[np.int32] = self.rows[1].astype(np.int32)
        return parents

    def path(self, node: int) -> tuple[int, ...]:
        """Nodes from a child of the root down to `node`, inclusive; () for the root, -1."""
        try:
            return tuple(_path(self.address, node))
        except ValueError as error:
            raise ConfigError(str(error)) from None

    def path_tokens(self, node: int) -> tuple[int, ...]:
        """The tokens of `path(node)`."""
        return tuple(int(self.tokens[i]) for i in self.path(node))


def _listed(values: Sequence[int] | npt.NDArray[Any]) -> Sequence[int]:
    """An array as a list, which is faster to read from C++."""
    return values.tolist() if isinstance(values, np.ndarray) else values


def _no_integers(tokens: object, parents: object) -> ConfigError:
    return ConfigError(
        "the tokens and the parents of a token tree must each be a list of integers within int64, "
        f"got {reprlib.repr(tokens)} and {reprlib.repr(parents)}"
    )


_EMPTY = TokenTree((), ())
