"""Scores go with their nodes, and what becomes of nodes is told as far as it is known."""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trtspec.errors import ConfigError
from trtspec.ops.draft_batch import DraftBatch
from trtspec.ops.tree import TokenTree

from .tree_reference import PlainTree


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
    for node, score in enumerate(tree.scores.tolist()):
        found.setdefault(tree.path_tokens(node), []).append(score)
    return found


@given(scored_trees(), st.integers(0, 12), st.sets(st.integers(0, 2)))
@settings(max_examples=80, deadline=None)
def test_scores_follow_their_nodes(tree: TokenTree, max_nodes: int, unwanted: set[int]) -> None:
    of_node = dict(zip(range(len(tree)), tree.scores.tolist(), strict=True))
    left = tree.without(unwanted)
    spared = [n for n in of_node if unwanted.isdisjoint(tree.path_tokens(n))]
    assert left.scores.tolist() == [of_node[n] for n in spared]
    (best,) = DraftBatch.of([tree]).best([max_nodes])
    order = sorted(of_node, key=lambda n: (-of_node[n], n))[:max_nodes]
    assert best.scores.tolist() == [of_node[n] for n in sorted(order)]
    again = pickle.loads(pickle.dumps(tree))
    assert again == tree and again.scores.tolist() == tree.scores.tolist()


def merged(parts: Sequence[TokenTree]) -> TokenTree:
    """The union of drafts of one request."""
    (union,) = DraftBatch.merge([DraftBatch.of([part]) for part in parts])
    return union


@given(st.lists(scored_trees(max_nodes=9), min_size=1, max_size=3))
@settings(max_examples=80, deadline=None)
def test_unions_keep_the_order_in_which_paths_come(parts: list[TokenTree]) -> None:
    found = PlainTree.merge(
        PlainTree(part.tokens.tolist(), part.parents.tolist()) for part in parts
    )
    union = merged(parts)
    assert (union.tokens.tolist(), union.parents.tolist()) == (found.tokens, found.parents)
    assert merged([union, *parts]) == union


@given(st.lists(scored_trees(max_nodes=9), min_size=1, max_size=3), st.integers(0, 12))
@settings(max_examples=80, deadline=None)
def test_the_best_of_a_union(parts: list[TokenTree], count: int) -> None:
    """By brute force: every path has the best score that a member gives it; the best paths stay,
    and with each the path to it."""
    union = merged(parts)
    scores: dict[tuple[int, ...], float] = {}
    for part in parts:
        for path, found in by_path(part).items():
            scores[path] = max([*found, scores.get(path, -math.inf)])
    assert {path: score for path, (score,) in by_path(union).items()} == scores
    best = by_path(DraftBatch.of([union]).best([count])[0])
    assert len(best) == min(count, len(scores))
    worst = min((score for (score,) in best.values()), default=0.0)
    assert all(score <= worst for path, score in scores.items() if path not in best)
    assert all(path[:-1] in best for path in best if len(path) > 1)


def cells(tree: TokenTree, depths: int, levels: int) -> list[tuple[int, int]]:
    """The cell of each node by definition; no score may be near the border of two levels."""
    found = []
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

    def equal(found: DraftBatch, expected: list[TokenTree]) -> None:
        assert [*found] == expected
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one.scores, other.scores)

    counts, drafts = draw(st.integers(0, 15)), DraftBatch.of(trees)
    each = zip(trees, counts, strict=True)
    equal(drafts.best(counts), [DraftBatch.of([tree]).best([count])[0] for tree, count in each])
    others = trees[::-1]
    pairs = zip(trees, others, strict=True)
    equal(DraftBatch.merge([drafts, DraftBatch.of(others)]), [merged(pair) for pair in pairs])
    gains = -torch.rand(3, 20)
    exponents = [data.draw(st.sampled_from([1.0, 0.5, 2.0])) for _ in trees]
    expected = [
        scored(tree, [gains.numpy()[cell] * np.float32(exponent) for cell in cells(tree, 3, 20)])
        for tree, exponent in zip(trees, exponents, strict=True)
    ]
    equal(drafts.calibrated(gains, exponents), expected)


@given(st.lists(scored_trees(max_nodes=6), min_size=1, max_size=4), st.integers(0, 25))
@settings(max_examples=80, deadline=None)
def test_the_likeliest_of_all(trees: list[TokenTree], count: int) -> None:
    drafts = DraftBatch.of(trees)
    nodes = [(-s, i, n) for i, tree in enumerate(trees) for n, s in enumerate(tree.scores.tolist())]
    kept = sorted(nodes)[:count]
    counts = [sum(i == item for _, i, _ in kept) for item in range(len(trees))]
    assert drafts.likeliest(count) == drafts.best(counts)


@given(st.lists(scored_trees(), min_size=1, max_size=3))
@settings(max_examples=40, deadline=None)
def test_chances(trees: list[TokenTree]) -> None:
    found = DraftBatch.of(trees).chances
    assert found.shape == (len(trees), max(map(len, trees)))
    for row, tree in zip(found, trees, strict=True):
        expected = sorted(np.exp(tree.scores).tolist(), reverse=True)
        assert row.tolist() == [*expected, *[0.0] * (len(row) - len(tree))]


def test_without_scores() -> None:
    plain = TokenTree([1, 2, 3], [-1, 0, -1])
    assert np.exp(plain.scores).tolist() == pytest.approx([0.5, 0.25, 0.5])
    assert plain == scored(plain, [-1, -1, -1]), "scores are not compared"
    with pytest.raises(ConfigError, match="2 nodes needs as many scores, got 3"):
        TokenTree([1, 2], [-1, 0], np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="shorter"):
        DraftBatch.of([plain]).best([])


@given(st.lists(st.floats(1e-6, 1.0), max_size=8))
@settings(max_examples=80, deadline=None)
def test_cells(chances: list[float]) -> None:
    logs = np.log(np.array(chances, np.float32)).tolist()
    chain = scored(TokenTree.chain(range(len(chances))), logs)
    _, _, places = DraftBatch.of([chain]).outcomes(0, range(len(chain)), None, (5, 20))
    depth, level = np.divmod(np.array(places, int), 20)
    assert depth.tolist() == [min(i, 4) for i in range(len(chances))]
    for own, chance in zip(level.tolist(), chances, strict=True):
        wanted = 4 * math.log2(1 - 4 * math.log2(chance)) if chance < 1 else 0.0
        assert own in {min(int(wanted - 1e-3), 19), min(int(wanted + 1e-3), 19)}
    half = DraftBatch.of([TokenTree.chain([1])]).outcomes(0, [1], None, (5, 20))[2]
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
    drafts = DraftBatch.of([None, tree])
    verified = None if cut is None else drafts.best([9, cut])
    rows, taken, places = drafts.outcomes(1, tokens, verified, (5, 20))
    known = walk(tree, tokens, None if verified is None else verified[1])
    assert taken == [*known.values()]
    assert [divmod(place, 20) for place in places] == [cells(tree, 5, 20)[n] for n in known]
    assert rows == len({int(tree.parents[node]) for node in known})


def test_nothing_is_known_beyond_the_next_token() -> None:
    """Of a chain of which one node was verified and accepted, the second is known by the bonus
    token, the third is not."""
    chain = DraftBatch.of([TokenTree.chain([5, 6, 7, 8])])
    assert chain.outcomes(0, [5, 6], None, (5, 20))[:2] == (2, [True, True])
    assert chain.outcomes(0, [5, 9], None, (5, 20))[:2] == (2, [True, False])
    assert chain.outcomes(0, [5, 6], chain.best([1]), (5, 20))[:2] == (1, [True])
