"""TokenTree: the draft tokens of one request, as a value.

A chain is a tree of width one. Row 0 of a verify step is the root (the newest accepted token, not
part of the tree); node n is row n + 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from trtspec.errors import ConfigError

BITS_PER_WORD = 64


class TokenTree:
    """Immutable draft tree: `tokens` int64[n] and `parents` int32[n], both read-only.

    parents[i] is the index of node i's parent, -1 for a child of the root; a parent comes before
    its children. Two trees are equal if both arrays are. ConfigError if the arrays do not fit.
    """

    tokens: npt.NDArray[np.int64]
    parents: npt.NDArray[np.int32]

    def __init__(
        self,
        tokens: Sequence[int] | npt.NDArray[Any],
        parents: Sequence[int] | npt.NDArray[Any],
    ) -> None:
        token_array, parent_array = _vector("tokens", tokens), _vector("parents", parents)
        if len(token_array) != len(parent_array):
            raise ConfigError(
                f"a token tree needs one parent a token, got {len(token_array)} tokens "
                f"and {len(parent_array)} parents"
            )
        own = np.arange(len(parent_array))
        wrong = np.flatnonzero((parent_array < -1) | (parent_array >= own))
        if len(wrong):
            i = int(wrong[0])
            raise ConfigError(
                f"node {i} of a token tree has parent {int(parent_array[i])}; "
                f"it must be -1 (the root) or the index of an earlier node, at most {i - 1}"
            )
        self._set(token_array.astype(np.int64), parent_array.astype(np.int32))

    def _set(self, tokens: npt.NDArray[np.int64], parents: npt.NDArray[np.int32]) -> None:
        tokens.flags.writeable = False
        parents.flags.writeable = False
        object.__setattr__(self, "tokens", tokens)
        object.__setattr__(self, "parents", parents)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"TokenTree is immutable, {name} cannot be set")

    @classmethod
    def chain(cls, tokens: Sequence[int] | npt.NDArray[Any]) -> TokenTree:
        """Node i is the child of node i - 1."""
        tree = cls.__new__(cls)
        array = _vector("tokens", tokens).astype(np.int64)
        tree._set(array, np.arange(-1, len(array) - 1, dtype=np.int32))
        return tree

    @classmethod
    def empty(cls) -> TokenTree:
        """No nodes: the verify step feeds the root alone."""
        return cls.chain(())

    @classmethod
    def merge(cls, trees: Iterable[TokenTree]) -> TokenTree:
        """The union by token path: a path that several trees hold appears once. Nodes keep the
        order in which they first come, so an earlier tree's nodes come first."""
        index: dict[tuple[int, int], int] = {}  # (parent in the union, token) -> node of the union
        for tree in trees:
            mapped: list[int] = []
            for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
                key = (mapped[parent] if parent >= 0 else -1, token)
                mapped.append(index.setdefault(key, len(index)))
        return cls([token for _, token in index], [parent for parent, _ in index])

    def __len__(self) -> int:
        return len(self.tokens)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TokenTree):
            return NotImplemented
        return np.array_equal(self.tokens, other.tokens) and np.array_equal(
            self.parents, other.parents
        )

    def __hash__(self) -> int:
        return hash((self.tokens.tobytes(), self.parents.tobytes()))

    def __repr__(self) -> str:
        return f"TokenTree(tokens={self.tokens.tolist()}, parents={self.parents.tolist()})"

    def __reduce__(self) -> tuple[type[TokenTree], tuple[list[int], list[int]]]:
        return TokenTree, (self.tokens.tolist(), self.parents.tolist())

    @cached_property
    def is_chain(self) -> bool:
        """Whether each node is the child of the one before it; the empty tree is."""
        return bool((self.parents == np.arange(-1, len(self) - 1)).all())

    @cached_property
    def depths(self) -> npt.NDArray[np.int32]:
        """int32[n]; a child of the root has depth 1."""
        if self.is_chain:
            return np.arange(1, len(self) + 1, dtype=np.int32)
        depths: list[int] = []
        for parent in self.parents.tolist():
            depths.append(depths[parent] + 1 if parent >= 0 else 1)
        return np.asarray(depths, dtype=np.int32)

    @property
    def max_depth(self) -> int:
        """Depth of the deepest node; 0 without nodes."""
        return int(self.depths.max()) if len(self) else 0

    @property
    def mask_words(self) -> int:
        """Words of 64 bits that one row of the mask needs; at least 1."""
        return -(-(len(self) + 1) // BITS_PER_WORD)

    def cut(self, max_depth: int | None = None, max_nodes: int | None = None) -> TokenTree:
        """Without the nodes deeper than `max_depth`, and of what is left the first `max_nodes`."""
        if min(max_depth or 0, max_nodes or 0) < 0:
            raise ConfigError(
                f"a tree is cut to 0 or more, got max_depth={max_depth}, max_nodes={max_nodes}"
            )
        kept = np.arange(len(self))
        if max_depth is not None and max_depth < self.max_depth:
            kept = np.flatnonzero(self.depths <= max_depth)
        # A kept node's parent is kept too: it is less deep and comes earlier.
        return self.select(kept[:max_nodes])

    def without(self, tokens: Iterable[int]) -> TokenTree:
        """Without the nodes that carry one of `tokens`, and their descendants. Verifying a token
        that ends the text gains nothing: its parent's own row already says whether it comes."""
        unwanted = frozenset(tokens)
        if unwanted.isdisjoint(self.tokens.tolist()):
            return self
        keep: list[bool] = []
        for token, parent in zip(self.tokens.tolist(), self.parents.tolist(), strict=True):
            keep.append(token not in unwanted and (parent < 0 or keep[parent]))
        return self.select(np.flatnonzero(keep))

    def select(self, kept: npt.NDArray[np.intp]) -> TokenTree:
        """The tree of the nodes `kept` (indices, ascending, closed under parents)."""
        if len(kept) == len(self):
            return self
        new_index = np.full(len(self) + 1, -1, dtype=np.int32)  # [-1] maps the root to itself
        new_index[kept] = np.arange(len(kept), dtype=np.int32)
        return TokenTree(self.tokens[kept], new_index[self.parents[kept]])

    def row_parents(self) -> npt.NDArray[np.int32]:
        """int32[n+1]: parent row of each row; the root's is -1, the root's children's is 0."""
        rows = np.empty(len(self) + 1, dtype=np.int32)
        rows[0] = -1
        rows[1:] = self.parents + 1
        return rows

    def mask(self, words: int | None = None) -> npt.NDArray[np.int64]:
        """int64[n+1, words]: bit j % 64 of word j // 64 of row r says that row r sees row j. The
        root sees itself; a node sees the root, its ancestors and itself. `words` defaults to the
        fewest that hold n + 1 bits; ConfigError if fewer are asked for."""
        words = self.mask_words if words is None else words
        if words < self.mask_words:
            raise ConfigError(
                f"a tree of {len(self)} nodes needs {self.mask_words} mask words a row, got {words}"
            )
        seen = [1]
        for node, parent in enumerate(self.parents.tolist()):
            seen.append(seen[parent + 1] | (2 << node))
        packed = b"".join(bits.to_bytes(8 * words, "little") for bits in seen)
        return np.frombuffer(packed, dtype="<i8").reshape(len(seen), words).astype(np.int64)

    def path(self, node: int) -> tuple[int, ...]:
        """Nodes from a child of the root down to `node`, inclusive; () for the root, -1."""
        if not -1 <= node < len(self):
            raise ConfigError(f"a tree of {len(self)} nodes has no node {node}")
        path = []
        while node >= 0:
            path.append(node)
            node = int(self.parents[node])
        return tuple(reversed(path))

    def path_tokens(self, node: int) -> tuple[int, ...]:
        """The tokens of `path(node)`."""
        return tuple(int(self.tokens[i]) for i in self.path(node))


def _vector(name: str, values: Sequence[int] | npt.NDArray[Any]) -> npt.NDArray[Any]:
    array = np.array(values)  # a copy: the tree owns its arrays
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
        raise ConfigError(
            f"the {name} of a token tree must be a list of integers, "
            f"got shape {array.shape}, dtype {array.dtype}"
        )
    return array
