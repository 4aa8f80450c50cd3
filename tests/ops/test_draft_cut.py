"""Which nodes of a rollout are verified where not all can be."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trtspec.errors import ConfigError
from trtspec.ops.draft_batch import DraftBatch
from trtspec.ops.tree import TokenTree

from .tree_reference import PlainTree


def random_rollout(seed: int, count: int) -> tuple[TokenTree, np.ndarray]:
    """Scores fall from parent to child, with ties and excluded nodes."""
    noise = np.random.default_rng(seed)
    tokens, parents, scores = [], [], []
    for node in range(count):
        parent = int(noise.integers(-1, node))
        gain = float(noise.choice([0.0, -1.0, -2.0, -np.inf], p=[0.2, 0.4, 0.3, 0.1]))
        tokens.append(int(noise.integers(8)))
        parents.append(parent)
        scores.append((scores[parent] if parent >= 0 else 0.0) + gain)
    return TokenTree(tokens, parents), np.array(scores, np.float32)


def best(
    tree: TokenTree, scores: np.ndarray, unwanted: set[int], max_depth: int, max_nodes: int
) -> TokenTree:
    columns = (tree.tokens, tree.parents, scores)
    nodes = tuple(torch.from_numpy(np.array(part))[None] for part in columns)
    (found,) = DraftBatch.cut([0], nodes, [[*unwanted]], [max_depth], [max_nodes])  # type: ignore[arg-type]
    return found


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 100_000),
    count=st.integers(1, 20),
    max_depth=st.integers(0, 6),
    max_nodes=st.integers(0, 20),
    unwanted=st.sets(st.integers(0, 7), max_size=2),
)
def test_the_best_that_may_be_kept(
    seed: int, count: int, max_depth: int, max_nodes: int, unwanted: set[int]
) -> None:
    tree, scores = random_rollout(seed, count)
    found = best(tree, scores, unwanted, max_depth, max_nodes)

    def allowed(node: int) -> bool:
        path = set(tree.path_tokens(node))
        return bool(
            np.isfinite(scores[node]) and tree.depths[node] <= max_depth and not path & unwanted
        )

    order = sorted(filter(allowed, range(count)), key=lambda node: (-scores[node], node))
    kept = sorted(order[:max_nodes])
    assert all(tree.parents[node] in (-1, *kept) for node in kept)
    expected = PlainTree(tree.tokens.tolist(), tree.parents.tolist()).select(kept)
    assert found == TokenTree(expected.tokens, expected.parents)


def test_a_wide_tree_keeps_its_best_path() -> None:
    """The deepest nodes are not the first to go."""
    tree = TokenTree([1, 2, 3, 4, 5], [-1, -1, -1, 0, 3])
    scores = np.array([-0.1, -3.0, -4.0, -0.2, -0.3], np.float32)
    assert best(tree, scores, set(), 3, 3) == TokenTree([1, 4, 5], [-1, 0, 1])


def columns(*trees: TokenTree) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of trees of equally many nodes, as a rollout returns them."""
    tokens, parents, scores = (
        torch.from_numpy(np.stack([getattr(tree, name) for tree in trees]))
        for name in ("tokens", "parents", "scores")
    )
    return tokens, parents, scores


def test_rows_go_to_their_items() -> None:
    """Each cut by its own limits; items without a row have no nodes."""
    first, second = TokenTree.chain([1, 2, 3]), TokenTree([4, 5, 6], [-1, -1, 0])
    nodes = columns(first, second)
    drafts = DraftBatch.cut([1, -1, 0, -1], nodes, [(3,), (5,)], [9, 2], [9, 9])
    chain, pair = TokenTree.chain([1, 2]), TokenTree.chain([4, 6])
    assert drafts == DraftBatch.of([pair, None, chain, None])
    assert DraftBatch.cut([0], columns(first), [()], [1], [9]) == DraftBatch.of(
        [TokenTree.chain([1])]
    )


def test_arrays_that_are_no_trees_are_refused() -> None:
    tokens, scores = torch.tensor([[1, 2]]), torch.zeros(1, 2)
    parents = torch.tensor([[5, 0]], dtype=torch.int32)
    with pytest.raises(ConfigError, match="node 0 of a token tree has parent 5"):
        DraftBatch.cut([0], (tokens, parents, scores), [()], [9], [9])
    with pytest.raises(RuntimeError, match="2 tokens int64, parents int32 and scores"):
        DraftBatch.cut([0], (tokens, parents.long(), scores), [()], [9], [9])
    with pytest.raises(RuntimeError, match="needed for 2 rows"):
        DraftBatch.cut([0], (tokens, parents, scores), [(), ()], [9, 9], [9, 9])
    with pytest.raises(RuntimeError, match="1 rows have no place 1"):
        DraftBatch.cut([1], (tokens, parents, scores), [()], [9], [9])
