"""Scores go with their nodes, and what becomes of nodes is told as far as it is known."""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trtspec.errors import ConfigError
from trtspec.ops.tree import TokenTree


def scored(tree: TokenTree, gains: Sequence[float]) -> TokenTree:
    """The tree with the sums of these along the path to each node as scores."""
    scores: list[np.float32] = []
    for parent, gain in zip(tree.parents.tolist(), gains, strict=True):
        above = scores[parent] if parent >= 0 else np.float32(0)
        scores.append(np.float32(above + np.float32(gain)))
    return TokenTree(tree.tokens, tree.parents, np.array(scores, np.float32))


@st.composite
def scored_trees(draw: st.DrawFn, max_nodes: int = 14, vocab: int = 3) -> TokenTree:
    size = draw(st.integers(0, max_nodes))
    tokens = [draw(st.integers(0, vocab - 1)) for _ in range(size)]
    parents = [draw(st.integers(max(-1, i - 4), i - 1)) for i in range(size)]
    gains = [-draw(st.sampled_from([0.0, 0.1, 0.5, 1.0, 3.0])) for _ in range(size)]
    return scored(TokenTree(tokens, parents), gains)


def by_path(tree: TokenTree) -> dict[tuple[int, ...], list[float]]:
    """Scores of the nodes that carry each path, in their order."""
    found: dict[tuple[int, ...], list[float]] = {}
    assert tree.scores is not None
    for node, score in enumerate(tree.scores.tolist()):
        found.setdefault(tree.path_tokens(node), []).append(score)
    return found


@given(scored_trees(), st.integers(0, 12), st.sets(st.integers(0, 2)))
@settings(max_examples=80, deadline=None)
def test_scores_follow_their_nodes(tree: TokenTree, max_nodes: int, unwanted: set[int]) -> None:
    assert tree.scores is not None
    of_node = dict(zip(range(len(tree)), tree.scores.tolist(), strict=True))
    left = tree.without(unwanted)
    spared = [n for n in of_node if unwanted.isdisjoint(tree.path_tokens(n))]
    assert left.scores is not None and left.scores.tolist() == [of_node[n] for n in spared]
    (best,) = TokenTree.best_each([tree], [max_nodes])
    order = sorted(of_node, key=lambda n: (-of_node[n], n))[:max_nodes]
    assert best.scores is not None
    assert best.scores.tolist() == [of_node[n] for n in sorted(order)]
    again = pickle.loads(pickle.dumps(tree))
    assert again == tree and again.scores.tolist() == tree.scores.tolist()


@given(st.lists(scored_trees(max_nodes=9), max_size=3), st.integers(0, 12))
@settings(max_examples=80, deadline=None)
def test_the_best_of_a_union(parts: list[TokenTree], count: int) -> None:
    """By brute force: every path has the best score that a member gives it; the best paths stay,
    and with each the path to it."""
    union = TokenTree.merge(parts)
    scores: dict[tuple[int, ...], float] = {}
    for part in parts:
        for path, found in by_path(part).items():
            scores[path] = max([*found, scores.get(path, -math.inf)])
    assert {path: score for path, (score,) in by_path(union).items()} == scores
    best = by_path(TokenTree.best_each([union], [count])[0])
    assert len(best) == min(count, len(scores))
    worst = min((score for (score,) in best.values()), default=0.0)
    assert all(score <= worst for path, score in scores.items() if path not in best)
    assert all(path[:-1] in best for path in best if len(path) > 1)


def best_of(trees: Sequence[TokenTree], *options: Any) -> list[TokenTree]:
    """`TokenTree.best_of` of trees with scores."""
    names = ("tokens", "parents", "scores")
    parts = [np.concatenate([getattr(tree, name) for tree in trees]) for name in names]
    nodes = [torch.from_numpy(part) for part in parts]
    return TokenTree.best_of([len(tree) for tree in trees], *nodes, *options)


def cells(tree: TokenTree, depths: int, levels: int) -> list[tuple[int, int]]:
    """The cell of each node by definition; no score may be near the border of two levels."""
    found = []
    assert tree.scores is not None
    scores = [*tree.scores.tolist(), 0.0]  # the root's last
    for node, parent in enumerate(tree.parents.tolist()):
        surprise = (scores[parent] - scores[node]) / math.log(2)
        level = math.floor(4 * math.log2(1 + 4 * surprise))
        found.append((min(int(tree.depths[node]), depths) - 1, min(level, levels - 1)))
    return found


@given(st.lists(scored_trees(), min_size=1, max_size=4), st.data())
@settings(max_examples=80, deadline=None)
def test_calls_for_many_trees_are_those_for_each(
    trees: list[TokenTree], data: st.DataObject
) -> None:
    def draw(strategy: st.SearchStrategy[int]) -> list[int]:
        return [data.draw(strategy) for _ in trees]

    def equal(found: list[TokenTree], expected: list[TokenTree]) -> None:
        assert found == expected
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one.scores, other.scores)

    counts, depths = draw(st.integers(0, 15)), draw(st.integers(0, 5))
    unwanted = [data.draw(st.sets(st.integers(0, 2), max_size=1)) for _ in trees]
    each = zip(trees, counts, strict=True)
    alone = [TokenTree.best_each([tree], [count])[0] for tree, count in each]
    equal(TokenTree.best_each(trees, counts), alone)
    equal(
        best_of(trees, unwanted, depths, counts),
        [
            best_of([tree], *([option] for option in rest))[0]
            for tree, *rest in zip(trees, unwanted, depths, counts, strict=True)
        ],
    )
    gains = -torch.rand(3, 20)
    exponents = [data.draw(st.sampled_from([1.0, 0.5, 2.0])) for _ in trees]
    expected = [
        scored(tree, [gains.numpy()[cell] * np.float32(exponent) for cell in cells(tree, 3, 20)])
        for tree, exponent in zip(trees, exponents, strict=True)
    ]
    equal(TokenTree.calibrated(trees, gains, exponents), expected)


def test_trees_of_several_requests_that_do_not_fit_are_refused() -> None:
    tokens, scores = torch.tensor([1, 2]), torch.zeros(2)
    with pytest.raises(ConfigError, match="node 0 of a token tree has parent 5"):
        parents = torch.tensor([5, 0], dtype=torch.int32)
        TokenTree.best_of([2], tokens, parents, scores, [()], [9], [9])
    with pytest.raises(RuntimeError, match="3 tokens int64, parents int32 and scores"):
        parents = torch.tensor([-1, 0], dtype=torch.int32)
        TokenTree.best_of([3], tokens, parents, scores, [()], [9], [9])


def test_without_scores() -> None:
    plain, other = TokenTree.chain([1, 2]), TokenTree([1, 3], [-1, 0], np.zeros(2, np.float32))
    assert plain.scores is None and TokenTree.merge([plain, other]).scores is None
    assert TokenTree.merge([other, TokenTree.empty()]).scores is not None
    assert plain == scored(plain, [-1, -1]), "scores are not compared"
    with pytest.raises(ConfigError, match="2 nodes needs as many scores, got 3"):
        TokenTree([1, 2], [-1, 0], np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="needs as many scores, got 0"):
        TokenTree.best_each([plain], [1])


@given(st.lists(st.floats(1e-6, 1.0), max_size=8))
@settings(max_examples=80, deadline=None)
def test_cells(chances: list[float]) -> None:
    logs = np.log(np.array(chances, np.float32)).tolist()
    chain = scored(TokenTree.chain(range(len(chances))), logs)
    depth, level = np.divmod(np.array(chain.outcomes(range(len(chain)), None, (5, 20))[2], int), 20)
    assert depth.tolist() == [min(i, 4) for i in range(len(chances))]
    for own, chance in zip(level.tolist(), chances, strict=True):
        wanted = 4 * math.log2(1 - 4 * math.log2(chance)) if chance < 1 else 0.0
        assert own in {min(int(wanted - 1e-3), 19), min(int(wanted + 1e-3), 19)}
    half = TokenTree.chain([1]).outcomes([1], None, (5, 20))[2]
    assert half == [int(4 * math.log2(5))]


def walk(tree: TokenTree, tokens: list[int], verified: TokenTree | None) -> dict[int, bool]:
    """Outcomes by definition. Of siblings with one token, acceptance takes the first."""

    def children(of: TokenTree, parent: int) -> list[int]:
        return [n for n in range(len(of)) if of.parents[n] == parent]

    def first(of: TokenTree, parent: int, token: int) -> list[int]:
        return [n for n in children(of, parent) if of.tokens[n] == token][:1]

    known: dict[int, bool] = {}
    at, inside = -1, -1
    for token in tokens:
        seen = [
            n
            for n in children(tree, at)
            if verified is None or first(verified, inside, tree.tokens[n])
        ]
        right = [n for n in first(tree, at, token) if n in seen]
        known.update({n: n in right for n in seen})
        if not right:
            break
        (at,) = right
        if verified is not None:
            (inside,) = first(verified, inside, token)
    return known


@pytest.mark.slow
@given(scored_trees(), st.lists(st.integers(0, 2), max_size=6), st.none() | st.integers(0, 14))
@settings(max_examples=150, deadline=None)
def test_outcomes(tree: TokenTree, tokens: list[int], cut: int | None) -> None:
    verified = None if cut is None else TokenTree.best_each([tree], [cut])[0]
    reached, taken, places = tree.outcomes(tokens, verified, (5, 20))
    assert dict(zip(reached, taken, strict=True)) == walk(tree, tokens, verified)
    expected = [cells(tree, 5, 20)[node] for node in reached]
    assert [divmod(place, 20) for place in places] == expected
    if reached:
        assert tree.depths[reached[-1]] == len({int(tree.parents[n]) for n in reached})


def test_nothing_is_known_beyond_the_next_token() -> None:
    """Of a chain of which one node was verified and accepted, the second is known by the bonus
    token, the third is not."""
    chain = TokenTree.chain([5, 6, 7, 8])
    assert chain.outcomes([5, 6], None, (5, 20))[:2] == ([0, 1], [True, True])
    assert chain.outcomes([5, 9], None, (5, 20))[:2] == ([0, 1], [True, False])
    assert chain.outcomes([5, 6], TokenTree.chain([5]), (5, 20))[:2] == ([0], [True])
