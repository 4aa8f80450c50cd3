"""TokenTree: properties over random trees, against definitions spelled out the slow way."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trtspec.backends.packing import RowGroup, pack
from trtspec.config.kv import CacheLayout
from trtspec.errors import ConfigError
from trtspec.ops.draft_batch import DraftBatch
from trtspec.ops.tree import TokenTree

from .tree_reference import PlainTree


@st.composite
def trees(draw: st.DrawFn, max_nodes: int = 90, vocab: int = 4) -> TokenTree:
    size = draw(st.integers(0, max_nodes))
    tokens = [draw(st.integers(0, vocab - 1)) for _ in range(size)]
    parents = [draw(st.integers(max(-1, i - 5), i - 1)) for i in range(size)]
    return TokenTree(tokens, parents)


def ancestors(tree: TokenTree, node: int) -> list[int]:
    """From `node` up to a child of the root."""
    found = []
    while node >= 0:
        found.append(node)
        node = int(tree.parents[node])
    return found


def paths(tree: TokenTree) -> set[tuple[int, ...]]:
    return {tree.path_tokens(i) for i in range(len(tree))}


def seen_rows(mask: np.ndarray, row: int) -> set[int]:
    bits = [int(word) >> j & 1 for word in mask[row].view(np.uint64) for j in range(64)]
    return {j for j, bit in enumerate(bits) if bit}


@given(trees())
@settings(max_examples=60, deadline=None)
def test_shape(tree: TokenTree) -> None:
    assert tree.tokens.dtype == np.int64 and tree.parents.dtype == np.int32
    assert tree.depths.dtype == np.int32 and tree.row_parents().dtype == np.int32
    assert tree.depths.tolist() == [len(ancestors(tree, i)) for i in range(len(tree))]
    assert tree.max_depth == max([0, *tree.depths.tolist()])
    assert tree.row_parents().tolist() == [-1, *(tree.parents + 1).tolist()]
    assert all(tree.path(i) == tuple(reversed(ancestors(tree, i))) for i in range(len(tree)))
    assert tree.path(-1) == ()
    chain = TokenTree.chain(tree.tokens)
    assert chain.depths.tolist() == list(range(1, len(tree) + 1))
    assert pickle.loads(pickle.dumps(tree)) == tree and hash(TokenTree.chain(tree.tokens)) == hash(
        chain
    )


def mask_of(tree: TokenTree, words: int) -> np.ndarray:
    """The mask of the tree's rows in an engine call, int64 [n + 1, words]."""
    block = torch.zeros(1, dtype=torch.int32)
    rows, *_ = pack(
        [RowGroup([0], 0, block)], CacheLayout(1 + len(tree), 1, words), DraftBatch.of([tree])
    )
    return rows.tree_mask.numpy()


@given(trees().filter(len), st.integers(0, 2))
@settings(max_examples=40, deadline=None)
def test_mask(tree: TokenTree, extra: int) -> None:
    words = len(tree) // 64 + 1 + extra
    mask = mask_of(tree, words)
    assert mask.dtype == np.int64 and mask.shape == (len(tree) + 1, words)
    assert seen_rows(mask, 0) == {0}
    for node in range(len(tree)):
        assert seen_rows(mask, node + 1) == {0, *(a + 1 for a in ancestors(tree, node))}


@given(trees(), st.sets(st.integers(0, 4), max_size=2))
@settings(max_examples=60, deadline=None)
def test_without(tree: TokenTree, unwanted: set[int]) -> None:
    kept = [p for p in map(tree.path_tokens, range(len(tree))) if unwanted.isdisjoint(p)]
    left = tree.without(unwanted)
    assert [left.path_tokens(i) for i in range(len(left))] == kept


def plain(tree: TokenTree) -> PlainTree:
    return PlainTree(tree.tokens.tolist(), tree.parents.tolist())


@given(trees(max_nodes=140), st.sets(st.integers(0, 4), max_size=2))
@settings(max_examples=60, deadline=None)
def test_the_same_as_in_plain_python(tree: TokenTree, unwanted: set[int]) -> None:
    other = plain(tree)
    assert tree.depths.tolist() == other.depths
    if len(tree):
        words = len(tree) // 64 + 1
        assert mask_of(tree, words).tolist() == other.mask(words)
    assert all(tree.path(node) == other.path(node) for node in range(-1, len(tree)))
    assert plain(tree.without(unwanted)) == other.without(unwanted)


def test_small_cases() -> None:
    empty = TokenTree.empty()
    assert len(empty) == 0 and empty.depths.tolist() == []
    assert empty.row_parents().tolist() == [-1] and empty.max_depth == 0
    chain = TokenTree.chain([7, 8])
    assert mask_of(chain, 1)[1:].tolist() == [[3], [7]]
    wide = TokenTree([0] * 64, [-1] * 64)
    assert mask_of(wide, 2)[64].tolist() == [1, 1]
    assert mask_of(wide, 2)[63].tolist() == [-(2**63) + 1, 0]
    with pytest.raises(ConfigError, match="has no node 0"):
        empty.path(0)


def test_values_cannot_change() -> None:
    source = np.array([1, 2])
    tree = TokenTree.chain(source)
    source[0] = 9
    assert tree.tokens.tolist() == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        tree.tokens[0] = 3
    for array in (tree.parents, tree.depths, tree.scores):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 3
    with pytest.raises(AttributeError):
        tree.tokens = source  # type: ignore[misc]


@pytest.mark.parametrize(
    ("tokens", "parents", "message"),
    [
        ([1, 2], [-1], "2 tokens and 1 parents"),
        ([1, 2], [-1, 1], "node 1 of a token tree has parent 1"),
        ([1, 2], [-2, 0], "node 0 of a token tree has parent -2"),
        ([1.5], [-1], "list of integers"),
        ([[1]], [-1], "list of integers"),
        ([1], [0.5], "list of integers"),
        ([2**63], [-1], "list of integers"),
        ([1], [2**40], "node 0 of a token tree"),
    ],
)
def test_refused(tokens: list[int], parents: list[int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TokenTree(tokens, parents)
