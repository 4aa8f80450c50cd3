"""TokenTree: the draft tokens of one request, as a value.

A chain is a tree of width one. Row 0 of a verify step is the root (the newest accepted token, not
part of the tree); node n is row n + 1.
"""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from trtspec.errors import ConfigError


class TokenTree:
    """Immutable draft tree: `tokens` int64[n], `parents` int32[n] and `scores` float32[n], all
    read-only.

    parents[i] is the index of node i's parent, -1 for a child of the root; a parent comes before
    its children. scores: for each node, ln of the path probability according to its drafter; by
    default each node has probability 1/2 given its parent. Trees are equal if tokens and parents
    are. ConfigError if the arrays do not fit.
    """

    tokens: npt.NDArray[np.int64]
    parents: npt.NDArray[np.int32]

    def __init__(
        self,
        tokens: Sequence[int] | npt.NDArray[Any],
        parents: Sequence[int] | npt.NDArray[Any],
        scores: npt.NDArray[np.float32] | None = None,
    ) -> None:
        own, above = _integers(tokens, parents)
        _check(own, above, scores)
        self._set(own, above.astype(np.int32), scores if scores is None else scores.copy())

    def _set(
        self,
        tokens: npt.NDArray[np.int64],
        parents: npt.NDArray[np.int32],
        scores: npt.NDArray[np.float32] | None,
    ) -> None:
        own = self.__dict__
        own["tokens"], own["parents"] = _fixed(tokens), _fixed(parents)
        if scores is not None:
            own["scores"] = _fixed(scores)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"TokenTree is immutable, {name} cannot be set")

    @classmethod
    def of_columns(
        cls,
        tokens: npt.NDArray[np.int64],
        parents: npt.NDArray[np.int32],
        scores: npt.NDArray[np.float32],
    ) -> TokenTree:
        """From arrays that are known to fit and will not change any more."""
        tree = cls.__new__(cls)
        tree._set(tokens, parents, scores)
        return tree

    @classmethod
    def chain(cls, tokens: Sequence[int] | npt.NDArray[Any]) -> TokenTree:
        """Node i is the child of node i - 1."""
        return cls(tokens, range(-1, len(tokens) - 1)) if len(tokens) else _EMPTY

    @classmethod
    def empty(cls) -> TokenTree:
        """No nodes: the verify step feeds the root alone."""
        return _EMPTY

    def __len__(self) -> int:
        return len(self.tokens)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TokenTree):
            return NotImplemented
        same = np.array_equal(self.tokens, other.tokens)
        return same and np.array_equal(self.parents, other.parents)

    def __hash__(self) -> int:
        return hash((self.tokens.tobytes(), self.parents.tobytes()))

    def __repr__(self) -> str:
        return f"TokenTree(tokens={self.tokens.tolist()}, parents={self.parents.tolist()})"

    def __reduce__(self) -> tuple[type[TokenTree], tuple[Any, ...]]:
        return TokenTree, (self.tokens, self.parents, self.scores)

    @cached_property
    def scores(self) -> npt.NDArray[np.float32]:
        """float32[n], read-only: ln of the probability of the path to each node."""
        return _fixed((self.depths * -np.log(2)).astype(np.float32))

    @cached_property
    def depths(self) -> npt.NDArray[np.int32]:
        """int32[n], read-only; a child of the root has depth 1."""
        depths: list[int] = []
        for parent in self.parents.tolist():
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return _fixed(np.array(depths, np.int32))

    @property
    def max_depth(self) -> int:
        """Depth of the deepest node; 0 without nodes."""
        return int(self.depths.max(initial=0))

    def row_parents(self) -> npt.NDArray[np.int32]:
        """int32[n+1]: parent row of each row; the root's is -1, the root's children's is 0."""
        return np.concatenate(([-1], self.parents + 1), dtype=np.int32)

    def without(self, tokens: Collection[int]) -> TokenTree:
        """The tree without nodes that carry one of `tokens`, and their descendants. Verifying a
        token that ends the text gains nothing: its parent's own row already tells whether it comes.
        """
        kept: list[int] = []
        reached = {-1}
        for node, parent in enumerate(self.parents.tolist()):
            if parent in reached and self.tokens[node] not in tokens:
                reached.add(node)
                kept.append(node)
        return self.only(kept)

    def only(self, nodes: Sequence[int]) -> TokenTree:
        """The tree of only these nodes, in ascending order; each one's parent is among them, or the
        root."""
        if len(nodes) == len(self):
            return self
        place = {-1: -1} | {node: i for i, node in enumerate(nodes)}
        own = list(nodes)
        parents = [place[parent] for parent in self.parents[own].tolist()]
        return TokenTree(self.tokens[own], parents, self.scores[own])

    def path(self, node: int) -> tuple[int, ...]:
        """Nodes from a child of the root down to `node`, inclusive; () for the root, -1."""
        if not -1 <= node < len(self):
            raise ConfigError(f"a tree of {len(self)} nodes has no node {node}")
        path: list[int] = []
        while node >= 0:
            path.append(node)
            node = int(self.parents[node])
        return tuple(reversed(path))

    def path_tokens(self, node: int) -> tuple[int, ...]:
        """The tokens of `path(node)`."""
        return tuple(int(self.tokens[i]) for i in self.path(node))


def _fixed(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.flags.writeable = False
    return array


def _integers(
    *lists: Sequence[int] | npt.NDArray[Any],
) -> Iterator[npt.NDArray[np.int64]]:
    """Copies of the tokens and of the parents."""
    for values in lists:
        found = np.array(values if len(values) else np.zeros(0, np.int64))
        if found.ndim != 1 or found.dtype.kind != "i":
            tokens, parents = map(reprlib.repr, lists)
            raise ConfigError(
                "the tokens and the parents of a token tree must each be a list of integers within "
                f"int64, got {tokens} and {parents}"
            )
        yield found.astype(np.int64)


def _check(
    tokens: npt.NDArray[np.int64],
    parents: npt.NDArray[np.int64],
    scores: npt.NDArray[np.float32] | None,
) -> None:
    size = len(tokens)
    if len(parents) != size:
        raise ConfigError(
            f"a token tree needs one parent a token, got {size} tokens and {len(parents)} parents"
        )
    if scores is not None and len(scores) != size:
        raise ConfigError(f"a tree of {size} nodes needs as many scores, got {len(scores)}")
    for node in np.flatnonzero((parents < -1) | (parents >= np.arange(size))).tolist():
        raise ConfigError(
            f"node {node} of a token tree has parent {parents[node]}; it must be -1 (the root) or "
            f"the index of an earlier node, at most {node - 1}"
        )


_EMPTY = TokenTree((), ())
