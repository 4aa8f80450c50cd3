"""The ops that grow draft trees against their references, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trtspec.config.tree import TreeShape
from trtspec.ops import build_tree
from trtspec.ops.build_tree import Children, TreePool
from trtspec.speculative.marginals import MarginalTree

from .tree_calls import assert_same, grow, marginals, random_children


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.integers(1, 3), st.integers(1, 9), st.integers(1, 5), st.booleans(), st.data())
def test_equal_the_references(
    requests: int, k: int, depth: int, is_static: bool, data: st.DataObject
) -> None:
    """Ties, gains above 0, -inf and NaN included."""
    nodes = data.draw(st.integers(1, k + (depth - 1) * k * k))
    seed = data.draw(st.integers(0, 2**32))
    shape = (requests, k, depth, nodes)
    found = grow(build_tree.expand_tree, build_tree.keep_best, shape, is_static, seed)
    references = build_tree.expand_tree_reference, build_tree.keep_best_reference
    assert_same(found, grow(*references, shape, is_static, seed))


@pytest.mark.parametrize(
    "shape",
    [
        TreeShape(1, 5, 6),
        TreeShape(4, 3, 12),
        TreeShape(30, 2, 17),
        TreeShape.static([[0], [2], [0, 1], [2, 0], [2, 0, 0]]),
    ],
)
@pytest.mark.parametrize("requests", [1, 3])
def test_marginal_trees(shape: TreeShape, requests: int) -> None:
    for seed in range(10):
        arguments = marginals(MarginalTree(shape), shape.num_steps, requests, seed)
        found = build_tree.marginal_trees(*arguments)
        assert_same(found, build_tree.marginal_trees_reference(*arguments))


def test_refusals() -> None:
    pool = TreePool.empty(2, 10, torch.device("cpu"))
    noise = torch.Generator().manual_seed(1)
    roots = Children(*random_children(2, 2, noise), 0, None)
    beam = build_tree.expand_tree(pool, roots, 2, 0, 1)
    deeper = Children(*random_children(4, 2, noise), 2, beam)
    wrong = beam._replace(candidates=beam.candidates + 1)  # a candidate that is none yet
    calls: list[tuple[str, Callable[[], Any]]] = [
        ("3 of 2 candidates", lambda: build_tree.expand_tree(pool, roots, 3, 0, 1)),
        ("bits 63 to 64 are not in 1", lambda: build_tree.expand_tree(pool, roots, 2, 63, 1)),
        ("complete the pool of 10, they end at 6", lambda: build_tree.keep_best(pool, deeper, 3)),
        (
            "above must be from 0 to 1",
            lambda: build_tree.expand_tree(pool, deeper._replace(above=wrong), 2, 2, 1),
        ),
        (
            "chosen must be from 0 to 1",
            lambda: build_tree.expand_tree(pool, roots, 1, 0, 1, torch.tensor([2])),
        ),
        (
            "candidates 8 to 11 are not in a pool of 10",
            lambda: build_tree.expand_tree(pool, deeper._replace(begin=8), 2, 2, 1),
        ),
        (
            "gains must be Float",
            lambda: build_tree.expand_tree(pool, roots._replace(gains=roots.tokens), 2, 0, 1),
        ),
        (
            "pool_scores must be contiguous",
            lambda: build_tree.expand_tree(
                pool._replace(scores=torch.empty(10, 2).T), roots, 2, 0, 1
            ),
        ),
    ]
    for message, call in calls:
        with pytest.raises(RuntimeError, match=message):
            call()
    tree = MarginalTree(TreeShape(2, 2, 4))
    tokens, gains, starts, lanes, ranks, *rest = marginals(tree, 2, 1, 0)
    for message, arguments in (
        ("ranks must be from 0", (starts, lanes, ranks + 2)),
        ("lanes must be from 0", (starts, lanes + 1, ranks)),
        ("starts must rise from 0", (starts + 1, lanes, ranks)),
    ):
        with pytest.raises(RuntimeError, match=message):
            build_tree.marginal_trees(tokens, gains, *arguments, *rest)


def test_opcheck() -> None:
    noise = torch.Generator().manual_seed(1)
    pool = TreePool(torch.zeros(2, 6).long(), torch.zeros(2, 6).int(), torch.zeros(2, 6))
    tokens, gains = random_children(2, 2, noise)
    ops = torch.ops.trtspec
    torch.library.opcheck(
        ops.expand_tree.default, (*pool, 0, tokens, gains, None, 2, None, 0, 1, None)
    )
    above = torch.tensor([[0, 1], [1, 0]], dtype=torch.int32)
    last = (*pool, 2, *random_children(4, 2, noise), above, 3, None)
    torch.library.opcheck(ops.keep_best.default, last)
    arguments = marginals(MarginalTree(TreeShape(2, 2, 4)), 2, 1, 0)
    torch.library.opcheck(ops.marginal_trees.default, arguments)
