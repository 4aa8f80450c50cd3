"""Random calls of the ops that grow draft trees."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from trtspec.ops.build_tree import Children, TreeBeam, TreePool
from trtspec.speculative.marginals import MarginalTree

# Few, so that many scores are equal; rounding may lift one above 0.
GAINS = torch.tensor([0.0, 1e-9, -0.25, -0.5, -1.0, -math.inf, math.nan])


def random_children(rows: int, branching: int, noise: torch.Generator) -> tuple[Tensor, Tensor]:
    """Tokens and gains ``[rows, branching]``."""
    tokens = torch.randint(1000, (rows, branching), generator=noise)
    return tokens, GAINS[torch.randint(len(GAINS), (rows, branching), generator=noise)]


Expand = Callable[..., TreeBeam]
Keep = Callable[..., tuple[Tensor, Tensor, Tensor]]


def by_schema(expand: Callable[..., Any], keep: Callable[..., Any]) -> tuple[Expand, Keep]:
    """Functions with the arguments of the ops, such as `torch.ops.trtspec.expand_tree`, as
    `build_tree.expand_tree` and `build_tree.keep_best`."""

    def columns(children: Children) -> tuple[int, Tensor, Tensor, Tensor | None]:
        tokens, gains, begin, above = children
        return begin, tokens, gains, None if above is None else above.candidates

    def expands(pool: TreePool, children: Children, *rest: Any) -> TreeBeam:
        width, first_bit, words, chosen = rest
        seen = None if children.above is None else children.above.seen
        given = (*pool, *columns(children), width, chosen, first_bit, words, seen)
        return TreeBeam(*expand(*given))

    return expands, lambda pool, children, *rest: keep(*pool, *columns(children), *rest)


def grow(
    expand: Expand,
    keep: Keep,
    shape: tuple[int, int, int, int],
    is_static: bool,
    seed: int,
    device: str = "cpu",
) -> list[Tensor]:
    """All that a growth writes, of ``(requests, k, D, nodes)``: beams, tree and pool."""
    requests, k, depth, nodes = shape
    size = k + (depth - 1) * k * k
    pool = TreePool.empty(requests, size, torch.device(device))
    noise = torch.Generator().manual_seed(seed)
    written: list[Tensor] = []

    def children(rows: int, begin: int, above: TreeBeam | None) -> Children:
        tokens, gains = (x.to(device) for x in random_children(rows, k, noise))
        return Children(tokens, gains, begin, above)

    newest = children(requests, 0, None)
    for fed in range(0, k * (depth - 1), k):
        count = newest.tokens.numel() // requests
        places = torch.randperm(count, generator=noise)[:k].sort().values.to(device)
        beam = expand(pool, newest, k, fed, -(-k * depth // 64), places if is_static else None)
        written += beam
        newest = children(requests * k, newest.begin + count, beam)
    # The first ones are closed under parents.
    tree = keep(pool, newest, nodes, torch.arange(nodes, device=device) if is_static else None)
    return [*written, *tree, *pool]


def assert_same(found: Iterable[Tensor], expected: Iterable[Tensor]) -> None:
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype and torch.equal(a.cpu(), b)


def marginals(
    tree: MarginalTree, depths: int, requests: int, seed: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, int, bool]:
    """The arguments of `marginal_trees` for random guesses."""
    noise = torch.Generator().manual_seed(seed)
    rows = random_children(requests * depths, tree.count, noise)
    tokens, gains = (x.view(requests, depths, tree.count) for x in rows)
    return tokens, gains, tree.starts, tree.lanes, tree.ranks, tree.num_nodes, tree.is_static
