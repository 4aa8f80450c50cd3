"""Trees of marginals: best-first ones against a heap and against all paths."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trtspec.config.tree import TreeShape
from trtspec.ops.sampling import SamplingColumns, draft_candidates
from trtspec.speculative.marginals import MarginalTree

from .tree_reference import (
    Children,
    Path,
    assert_equal_trees,
    columns,
    grow_product,
    heap_scores,
)

V = 80
SHAPES = {
    "chain": TreeShape(1, 7, 8),
    "two": TreeShape(2, 4, 15),
    "wide": TreeShape(40, 1, 33),
    "as many as nodes": TreeShape(31, 7, 32),
    "fewer than nodes": TreeShape(5, 6, 64),
    "large": TreeShape(64, 15, 256),
    "narrow": TreeShape(7, 15, 128),
}
GREEDY = (0.0, 0, 1.0, 0.0, 0, 0, 0)
SAMPLED = (0.8, 0, 1.0, 0.0, 2, 1, 7)
FILTERED = (1.0, 3, 0.9, 0.1, -5, 0, 40)  # three survivors at most
SAMPLING = columns(GREEDY, SAMPLED, FILTERED)


def children_of(logits: Tensor, sampling: SamplingColumns, request: int) -> Children:
    """Of the depth alone, each in a call of its own."""
    found: dict[tuple[int, int], list[tuple[int, np.float32]]] = {}

    def children(path: Path, count: int) -> list[tuple[int, np.float32]]:
        key = len(path), count
        if key not in found:
            row = SamplingColumns(*(column[request : request + 1] for column in sampling))
            row = row._replace(output_index=row.output_index + len(path))
            ids, gains = draft_candidates(logits[request, len(path)][None], *row, None, count)
            pairs = zip(ids[0].tolist(), gains[0].clamp(max=0).numpy(), strict=True)
            found[key] = list(pairs)
        return found[key]

    return children


def marginals(shape: TreeShape, seed: int, sharpness: float = 2.0) -> Tensor:
    noise = torch.Generator().manual_seed(seed)
    return sharpness * torch.randn(3, shape.num_steps, V, generator=noise)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("sharpness", [0.5, 2.0, 5.0])
def test_the_best_paths_of_a_heap(name: str, sharpness: float) -> None:
    """Exactly the N - 1 nodes of the highest path probability, under the coupled noise."""
    shape = SHAPES[name]
    logits = marginals(shape, 3, sharpness)
    tokens, parents, scores = MarginalTree(shape)(logits, None, SAMPLING)
    for i in range(2):
        expected = heap_scores(children_of(logits, SAMPLING, i), shape)
        assert scores[i].sort(descending=True).values.tolist() == [float(x) for x in expected]
        seen = set()
        for node in range(shape.num_nodes):
            path, at = [], node
            while at >= 0:
                path.append(int(tokens[i, at]))
                assert parents[i, at] < at
                at = int(parents[i, at])
            seen.add(tuple(path))
        assert len(seen) == shape.num_nodes, "a path is there twice"


@settings(max_examples=60, deadline=None)
@given(
    k=st.integers(1, 5),
    depth=st.integers(1, 4),
    rows=st.integers(2, 40),
    seed=st.integers(0, 10_000),
    ties=st.booleans(),
)
def test_all_paths(k: int, depth: int, rows: int, seed: int, ties: bool) -> None:
    """Bit for bit what is left of the whole product, ties and missing children included."""
    rows = depth + 1 if k == 1 else min(rows, 1 + k + (depth - 1) * k * k)
    shape = TreeShape(k, depth, rows)
    logits = marginals(shape, seed)
    if ties:
        logits = logits[:, :, :12].round() * 5
    found = MarginalTree(shape)(logits, None, SAMPLING)
    for i in range(3):
        nodes = grow_product(children_of(logits, SAMPLING, i), shape)
        assert_equal_trees(nodes, *(x[i] for x in found))


def test_a_draft_vocabulary() -> None:
    """Tokens and noise are those of the target's ids."""
    shape = SHAPES["two"]
    logits, ids = marginals(shape, 5), torch.arange(V) * 3 + 1
    wide = torch.full((3, shape.num_steps, 3 * V + 1), -torch.inf)
    wide[:, :, ids] = logits
    greedy_and_sampled = SamplingColumns(*(column[:2] for column in SAMPLING))
    found = MarginalTree(shape)(logits[:2], ids, greedy_and_sampled)
    expected = MarginalTree(shape)(wide[:2], None, greedy_and_sampled)
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
    torch.testing.assert_close(found[2], expected[2])
