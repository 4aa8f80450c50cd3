"""Which nodes a rollout feeds at every depth and keeps in the end: dynamic and static trees."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from trtspec.config.tree import Choices, TreeShape

Expand = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]
"""The children of the nodes fed at a depth, which may depend on their paths. Arguments: the depth,
the nodes' tokens ``[B, width]`` and their lanes (which of the previously fed rows are their
parents). Results: the children's tokens ``[B * width, branching] i64`` and the log probability of
each given its parent, best first."""


class Levels(nn.Module):
    """The growth of a tree, depth by depth.

    branching: children recorded for every row fed: ``branching[0]`` for the root, ``branching[d]``
    for the rows fed at depth d. widths: rows fed at depth 1, 2, ... up to the last but one. A
    depth's candidates are in the order of (row fed, rank); the pool contains those of all depths in
    turn.
    """

    branching: tuple[int, ...]
    widths: tuple[int, ...]

    def beam(self, index: int, scores: Tensor) -> Tensor:
        """Which candidates ``scores [B, C]`` of depth ``index + 1`` are fed: ``[B, width] i64``."""
        raise NotImplementedError

    def kept(self, scores: Tensor) -> Tensor:
        """Which candidates ``scores [B, C]`` of the pool form the tree: ``[B, N-1] i64``,
        ascending."""
        raise NotImplementedError

    def grow(self, tokens: Tensor, scores: Tensor, expand: Expand) -> tuple[Tensor, Tensor, Tensor]:
        """The tree below the children of the root ``[B, branching[0]]``: at every depth the nodes
        of the beam are fed, and the children that ``expand`` finds are scored. For the results see
        `cut_pool`."""
        batch = tokens.shape[0]
        pool_tokens, pool_scores = [tokens], [scores]
        pool_parents = [torch.full_like(tokens, -1)]
        pooled = 0
        for depth, width in enumerate(self.widths, 1):
            branching = self.branching[depth]
            best = self.beam(depth - 1, scores)
            lane = best // self.branching[depth - 1]
            beam_tokens, beam_scores = tokens.gather(1, best), scores.gather(1, best)
            children, gains = expand(depth, beam_tokens, lane)
            pool_parents.append((pooled + best).repeat_interleave(branching, dim=1))
            pooled += tokens.shape[1]
            tokens = children.reshape(batch, width * branching)
            scores = beam_scores[:, :, None] + gains.reshape(batch, width, branching)
            scores = scores.reshape(batch, width * branching)
            pool_tokens.append(tokens)
            pool_scores.append(scores)
        return self.cut(pool_tokens, pool_parents, pool_scores)

    def cut(
        self, tokens: Sequence[Tensor], parents: Sequence[Tensor], scores: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The tree from its pool, in the pool's order: see `cut_pool`."""
        return cut_pool(self.kept(torch.cat(list(scores), 1)), tokens, parents, scores)


class DynamicLevels(Levels):
    """The k best of each depth, the N - 1 best of all; equal scores go to the lower index."""

    def __init__(self, shape: TreeShape) -> None:
        super().__init__()
        self.branching = (shape.topk,) * shape.num_steps
        self.widths = (shape.topk,) * (shape.num_steps - 1)
        self.num_nodes = shape.num_nodes

    def beam(self, index: int, scores: Tensor) -> Tensor:
        return best_scores(scores, self.widths[index])

    def kept(self, scores: Tensor) -> Tensor:
        return best_scores(scores, self.num_nodes).sort(dim=1).values


class StaticLevels(Levels):
    """The nodes of a list of paths, whatever their scores."""

    tree: Tensor

    def __init__(self, choices: Choices) -> None:
        super().__init__()
        known = set(choices)
        depths = range(1, max(map(len, choices)) + 1)
        by_depth = [[path for path in choices if len(path) == depth] for depth in depths]
        self.branching = tuple(1 + max(path[-1] for path in paths) for paths in by_depth)
        self.widths = ()
        lanes: dict[tuple[int, ...], int] = {(): 0}  # of the rows last fed
        tree: list[int] = []
        pooled = 0
        for depth, paths in enumerate(by_depth):
            branching = self.branching[depth]
            place = {path: lanes[path[:-1]] * branching + path[-1] for path in paths}
            tree += [pooled + place[path] for path in paths]
            pooled += len(lanes) * branching
            fed = [path for path in paths if any(child[:-1] == path for child in known)]
            if fed:
                self.widths += (len(fed),)
                beam = torch.tensor([place[path] for path in fed])
                self.register_buffer(f"beam_{depth}", beam)
            lanes = {path: lane for lane, path in enumerate(fed)}
        self.register_buffer("tree", torch.tensor(tree))

    def beam(self, index: int, scores: Tensor) -> Tensor:
        beam: Tensor = getattr(self, f"beam_{index}")
        return beam.expand(scores.shape[0], -1)

    def kept(self, scores: Tensor) -> Tensor:
        return self.tree.expand(scores.shape[0], -1)


def make_levels(shape: TreeShape) -> Levels:
    """How a tree of this shape grows."""
    return DynamicLevels(shape) if shape.choices is None else StaticLevels(shape.choices)


def cut_pool(
    kept: Tensor, tokens: Sequence[Tensor], parents: Sequence[Tensor], scores: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """The tree of the candidates ``kept [B, N-1] i64``, ascending and closed under parents.

    For each depth in turn ``[B, C_d]``: tokens i64, parents i64 (indices into the pool, which
    contains one depth after the other, -1 = the root) and scores f32. Returns tokens ``[B, N-1]``,
    parents i32 as indices into the tree, and scores.
    """
    index = torch.arange(kept.shape[1], device=kept.device).expand_as(kept)
    all_tokens = torch.cat(list(tokens), 1)
    new_index = torch.zeros_like(all_tokens).scatter(1, kept, index)
    old_parents = torch.cat(list(parents), 1).gather(1, kept)
    new_parents = new_index.gather(1, old_parents.clamp(min=0))
    new_parents = torch.where(old_parents < 0, -1, new_parents).to(torch.int32)
    return all_tokens.gather(1, kept), new_parents, torch.cat(list(scores), 1).gather(1, kept)


def best_scores(scores: Tensor, count: int) -> Tensor:
    """Indices ``[B, count]`` of the largest scores, descending, ties to the lowest index."""
    return torch.sort(scores, dim=1, descending=True, stable=True).indices[:, :count]
