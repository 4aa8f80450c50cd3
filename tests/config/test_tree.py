"""TreeShape: what (k, D, N) and what static choices are trees."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtspec.config.tree import MAX_TOPK, MAX_TREE_ROWS, Choices, TreeShape, check_choices
from trtspec.errors import ConfigError


def connected(parents: list[int], ranks: list[int]) -> Choices:
    """Each entry hangs a node with a rank below the root (0) or an earlier node."""
    paths: list[tuple[int, ...]] = [()]
    for parent, rank in zip(parents, ranks, strict=True):
        path = (*paths[parent % len(paths)], rank)
        if path not in paths:
            paths.append(path)
    return tuple(paths[1:])


SIZES = st.integers(1, 30)
TREES = SIZES.flatmap(
    lambda n: st.builds(
        connected,
        st.lists(st.integers(0, 40), min_size=n, max_size=n),
        st.lists(st.integers(0, MAX_TOPK - 1), min_size=n, max_size=n),
    )
)


@given(TREES, st.randoms(use_true_random=False))
def test_connected_choices_are_a_tree(paths: Choices, order: random.Random) -> None:
    """In any order and as lists; rows come sorted so that every parent stands before its child."""
    shuffled = [list(path) for path in paths]
    order.shuffle(shuffled)
    tree = TreeShape.static(shuffled)
    assert tree.choices is not None and set(tree.choices) == set(paths)
    assert tree.num_nodes == len(paths) and tree.num_draft_tokens == len(paths) + 1
    assert tree.num_steps == max(len(path) for path in paths)
    assert tree.topk == 1 + max(rank for path in paths for rank in path)
    for index, path in enumerate(tree.choices):
        assert len(path) == 1 or path[:-1] in tree.choices[:index]
    assert tree.num_rollout_rows == sum(
        any(child[:-1] == path for child in paths) for path in paths
    )
    assert TreeShape(tree.topk, tree.num_steps, tree.num_draft_tokens, tree.choices) == tree


@given(TREES, st.data())
def test_an_orphan_is_refused(paths: Choices, data: st.DataObject) -> None:
    parents = sorted({path[:-1] for path in paths if len(path) > 1})
    if not parents:
        return
    lost = data.draw(st.sampled_from(parents))
    with pytest.raises(ConfigError, match="has no parent: add"):
        check_choices(path for path in paths if path != lost)


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([], "is empty"),
        ([[]], "empty path"),
        ([[0], [0]], r"has the path \[0\] twice"),
        ([[0], [0, -1]], r"path \[0, -1\] has a negative rank"),
        ([[0, 0]], r"path \[0, 0\] has no parent: add \[0\]"),
    ],
)
def test_choices_that_are_no_tree(paths: list[list[int]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_choices(paths)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(2, 60))
def test_a_dynamic_tree_fits_its_candidates(k: int, depth: int, rows: int) -> None:
    candidates = k + sum(k * k for _ in range(depth - 1))
    fits = rows - 1 <= candidates and (k > 1 or rows == depth + 1)
    if not fits:
        with pytest.raises(ConfigError):
            TreeShape(k, depth, rows)
        return
    tree = TreeShape(k, depth, rows)
    assert (tree.num_nodes, tree.num_rollout_rows) == (rows - 1, k * (depth - 1))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((0, 1, 2), "topk=0 must be between 1 and 64"),
        ((MAX_TOPK + 1, 1, 2), "topk=65 must be"),
        ((1, 0, 2), "num_steps=0 must be at least 1"),
        ((2, 2, 1), "num_draft_tokens=1 counts the root"),
        ((8, 99, MAX_TREE_ROWS + 1), "between 2 and 1024"),
        ((3, 2, 14), r"14 - 1 = 13 > 3 \+ \(2 - 1\) \* 3\^2 = 12; lower num_draft_tokens to 13"),
        ((1, 4, 3), "a chain .* verifies num_draft_tokens=5 rows, got 3; set num_steps=2"),
        ((2, 1, 3, ((0,),)), "make a tree of topk=1, num_steps=1, num_draft_tokens=2, not of 2"),
    ],
)
def test_shapes_that_do_not_hold(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TreeShape(*shape)


def test_too_many_choices() -> None:
    paths = [[i] for i in range(64)] + [[i, j] for i in range(64) for j in range(15)]
    with pytest.raises(ConfigError, match="num_draft_tokens=1025 counts the root"):
        TreeShape.static(paths)
