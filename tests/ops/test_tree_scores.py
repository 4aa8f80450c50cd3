"""Scores go with their nodes, and what becomes of nodes is told as far as it is known."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtspec.errors import ConfigError
from trtspec.ops.tree import TokenTree


@st.composite
def scored_trees(draw: st.DrawFn, max_nodes: int = 14, vocab: int = 3) -> TokenTree:
    size = draw(st.integers(0, max_nodes))
    tokens = [draw(st.integers(0, vocab - 1)) for _ in range(size)]
    parents = [draw(st.integers(max(-1, i - 4), i - 1)) for i in range(size)]
    gains = [-draw(st.sampled_from([0.0, 0.1, 0.5, 1.0, 3.0])) for _ in range(size)]
    return TokenTree(tokens, parents).scored(np.array(gains, np.float32))


def by_path(tree: TokenTree) -> dict[tuple[int, ...], list[float]]:
    """Scores of the nodes that carry each path, in their order."""
    found: dict[tuple[int, ...], list[float]] = {}
    assert tree.scores is not None
    for node, score in enumerate(tree.scores.tolist()):
        found.setdefault(tree.path_tokens(node), []).append(score)
    return found


@given(scored_trees(), st.integers(0, 5), st.integers(0, 12), st.sets(st.integers(0, 2)))
@settings(max_examples=80, deadline=None)
def test_scores_follow_their_nodes(
    tree: TokenTree, max_depth: int, max_nodes: int, unwanted: set[int]
) -> None:
    assert tree.scores is not None
    of_node = dict(zip(range(len(tree)), tree.scores.tolist(), strict=True))
    kept = [n for n in range(len(tree)) if tree.depths[n] <= max_depth][:max_nodes]
    cut = tree.cut(max_depth, max_nodes)
    assert cut.scores is not None and cut.scores.tolist() == [of_node[n] for n in kept]
    left = tree.without(unwanted)
    spared = [n for n in of_node if unwanted.isdisjoint(tree.path_tokens(n))]
    assert left.scores is not None and left.scores.tolist() == [of_node[n] for n in spared]
    best = tree.best(None, (), len(tree), max_nodes)
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
    best = by_path(union.best(None, (), 99, count))
    assert len(best) == min(count, len(scores))
    worst = min((score for (score,) in best.values()), default=0.0)
    assert all(score <= worst for path, score in scores.items() if path not in best)
    assert all(path[:-1] in best for path in best if len(path) > 1)


def test_without_scores() -> None:
    plain, scored = TokenTree.chain([1, 2]), TokenTree([1, 3], [-1, 0], np.zeros(2, np.float32))
    assert plain.scores is None and TokenTree.merge([plain, scored]).scores is None
    assert TokenTree.merge([scored, TokenTree.empty()]).scores is not None
    assert plain == plain.scored(np.array([-1, -1], np.float32)), "scores are not compared"
    with pytest.raises(ConfigError, match="2 nodes needs as many scores, got 3"):
        TokenTree([1, 2], [-1, 0], np.zeros(3, np.float32))
    with pytest.raises(ConfigError, match="needs as many scores, got 0"):
        plain.best(None, (), 9, 9)


@given(st.lists(st.floats(1e-6, 1.0), max_size=8))
@settings(max_examples=80, deadline=None)
def test_cells(chances: list[float]) -> None:
    chain = TokenTree.chain(range(len(chances))).scored(np.log(np.array(chances, np.float32)))
    depth, level = np.divmod(chain.cells(5, 20), 20)
    assert depth.tolist() == [min(i, 4) for i in range(len(chances))]
    for own, chance in zip(level.tolist(), chances, strict=True):
        wanted = 4 * math.log2(1 - 4 * math.log2(chance)) if chance < 1 else 0.0
        assert own in {min(int(wanted - 1e-3), 19), min(int(wanted + 1e-3), 19)}
    half = TokenTree.chain([1]).cells(5, 20)
    assert half.tolist() == [int(4 * math.log2(5))]


def walk(tree: TokenTree, tokens: list[int], verified: TokenTree | None) -> dict[int, bool]:
    """Outcomes by definition."""
    allowed = None
    if verified is not None:
        allowed = {verified.path_tokens(n) for n in range(len(verified))}
    known: dict[int, bool] = {}
    at = -1
    for token in tokens:
        children = [
            n
            for n in range(len(tree))
            if tree.parents[n] == at and (allowed is None or tree.path_tokens(n) in allowed)
        ]
        right = [n for n in children if tree.tokens[n] == token][:1]
        known.update({n: n in right for n in children})
        if not right:
            break
        at = right[0]
    return known


@given(scored_trees(), st.lists(st.integers(0, 2), max_size=6), st.none() | st.integers(0, 14))
@settings(max_examples=150, deadline=None)
def test_outcomes(tree: TokenTree, tokens: list[int], cut: int | None) -> None:
    verified = None if cut is None else tree.cut(max_nodes=cut)
    reached, taken = tree.outcomes(tokens, verified)
    assert dict(zip(reached, taken, strict=True)) == walk(tree, tokens, verified)
    if reached:
        assert tree.depths[reached[-1]] == len({int(tree.parents[n]) for n in reached})


def test_nothing_is_known_beyond_the_next_token() -> None:
    """Of a chain of which one node was verified and accepted, the second is known by the bonus
    token, the third is not."""
    chain = TokenTree.chain([5, 6, 7, 8])
    assert chain.outcomes([5, 6]) == ([0, 1], [True, True])
    assert chain.outcomes([5, 9]) == ([0, 1], [True, False])
    assert chain.outcomes([5, 6], chain.cut(max_nodes=1)) == ([0], [True])
