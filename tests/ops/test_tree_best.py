"""Which nodes of a rollout are verified where not all can be."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

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
    nodes = [torch.from_numpy(np.array(part)) for part in (tree.tokens, tree.parents, scores)]
    (found,) = TokenTree.best_of([len(tree)], *nodes, [unwanted], [max_depth], [max_nodes])
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
