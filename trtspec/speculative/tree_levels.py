"""Which nodes a rollout feeds at every depth and keeps in the end: dynamic and static trees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from trtspec.config.tree import Choices, TreeShape
from trtspec.ops.build_tree import Children, TreeBeam, TreePool, expand_tree, keep_best

Expand = Callable[[int, TreeBeam], tuple[Tensor, Tensor]]
"""The children of the nodes fed at a depth, which may depend on their paths. Arguments: the depth
and the nodes. Results: the children's tokens ``[B * width, branching] i64`` and the log probability
of each given its parent, best first."""


class Levels(nn.Module):
    """The growth of a tree, depth by depth.

    branching: children recorded for every row fed: ``branching[0]`` for the root, ``branching[d]``
    for the rows fed at depth d. widths: rows fed at depth 1, 2, ... up to the last but one. A
    depth's candidates are in the order of (row fed, rank); the pool contains those of all depths in
    turn. A static tree feeds and keeps the nodes of its paths, whatever their scores: ``beams``,
    for each depth their places among its candidates, and ``tree``, candidates of the pool.
    Otherwise the best are fed and kept.
    """

    tree: Tensor | None

    def __init__(
        self,
        branching: Sequence[int],
        widths: Sequence[int],
        num_nodes: int,
        beams: Sequence[Sequence[int]] = (),
        tree: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self.branching, self.widths = tuple(branching), tuple(widths)
        self.num_nodes = num_nodes
        for index, places in enumerate(beams):
            self.register_buffer(f"beam_{index}", torch.tensor(places))
        self.register_buffer("tree", None if tree is None else torch.tensor(tree))

    def beam(self, index: int) -> Tensor | None:
        """Which candidates of depth ``index + 1`` are fed ``[width] i64``; None: the best."""
        places: Tensor | None = getattr(self, f"beam_{index}", None)
        return places

    def grow(
        self, children: tuple[Tensor, Tensor], expand: Expand, words: int = 0
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The tree below ``children`` of the root, as `Expand` returns them for one row per
        request: at every depth the nodes of the beam are fed, and the children that ``expand``
        finds are scored. ``words``: of what the beam's rows see. For the results see
        `keep_best`."""
        sizes = [rows * k for rows, k in zip((1, *self.widths), self.branching, strict=True)]
        begins = list(accumulate(sizes, initial=0))
        pool = TreePool.empty(children[0].shape[0], begins[-1], children[0].device)
        newest = Children(*children, 0, None)
        for depth, width in enumerate(self.widths, 1):
            fed = sum(self.widths[: depth - 1])
            beam = expand_tree(pool, newest, width, fed, words, self.beam(depth - 1))
            newest = Children(*expand(depth, beam), begins[depth], beam)
        return keep_best(pool, newest, self.num_nodes, self.tree)


def make_levels(shape: TreeShape) -> Levels:
    """How a tree of this shape grows."""
    if shape.choices is not None:
        return _static_levels(shape.choices)
    widths = [shape.topk] * (shape.num_steps - 1)
    return Levels([shape.topk] * shape.num_steps, widths, shape.num_nodes)


def _static_levels(choices: Choices) -> Levels:
    """``choices`` are sorted by depth, then by path."""
    inner = {path[:-1] for path in choices}
    lanes: dict[tuple[int, ...], int] = {(): 0}  # of the rows last fed
    branching: list[int] = []
    beams: list[list[int]] = []
    tree: list[int] = []
    pooled = 0
    for depth in range(1, max(map(len, choices)) + 1):
        paths = [path for path in choices if len(path) == depth]
        branching.append(1 + max(path[-1] for path in paths))
        place = {path: lanes[path[:-1]] * branching[-1] + path[-1] for path in paths}
        tree += [pooled + place[path] for path in paths]
        pooled += len(lanes) * branching[-1]
        fed = [path for path in paths if path in inner]
        if fed:
            beams.append([place[path] for path in fed])
        lanes = {path: lane for lane, path in enumerate(fed)}
    return Levels(branching, [len(beam) for beam in beams], len(choices), beams, tree)
