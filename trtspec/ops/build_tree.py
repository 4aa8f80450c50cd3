"""Growing the draft trees of a batch: which nodes a rollout feeds next, and which it keeps.

A rollout feeds some rows of each request at every depth, first the root alone. The best children of
each row become candidates of the request's pool, depth after depth, in the order of (row, rank). A
candidate's score is the sum of the gains along its path, log probabilities, added from the root
down in float32. A gain above 0 (by rounding) counts as 0, NaN as -inf, so no child scores above its
parent, and the best candidates of a pool are closed under parents. Among equal scores the
candidate of the lower index is better.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trtspec.ops import native  # noqa: F401  registers the ops


class TreePool(NamedTuple):
    """The candidates of B requests, ``[B, C]`` each: ``tokens`` i64, ``parents`` i32 (candidates of
    the same pool, -1 = the root), ``scores`` f32. What no call has written yet is undefined."""

    tokens: Tensor
    parents: Tensor
    scores: Tensor

    @classmethod
    def empty(cls, requests: int, size: int, device: torch.device) -> TreePool:
        """A pool without candidates."""
        kinds = (torch.int64, torch.int32, torch.float32)
        return cls(*(torch.empty(requests, size, dtype=kind, device=device) for kind in kinds))


class TreeBeam(NamedTuple):
    """Rows that are fed, ``width`` per request: ``tokens [B, width] i64``; ``candidates [B, width]
    i32`` of the pool; ``lanes [B, width] i64``: which of the rows fed before is the parent; ``seen
    [B, width, W] i64``: packed, which of the rows fed so far are on its path, the first one of the
    request being bit 0."""

    tokens: Tensor
    candidates: Tensor
    lanes: Tensor
    seen: Tensor


class Children(NamedTuple):
    """The children of all rows last fed, ``[B * rows, branching]``: ``tokens`` i64, best first, and
    ``gains`` f32. They become candidates of the pool from ``begin`` on; ``above`` is the beam of
    those rows, None: there is one per request, the root."""

    tokens: Tensor
    gains: Tensor
    begin: int
    above: TreeBeam | None


def expand_tree(
    pool: TreePool,
    children: Children,
    width: int,
    first_bit: int,
    words: int,
    chosen: Tensor | None = None,
) -> TreeBeam:
    """Put ``children`` into the pool, which is written in place, and choose the rows that are fed
    next: ``width`` of these children per request.

    ``chosen [width] i64`` are their places among the children of a request; None: the best ones,
    best first. ``first_bit``: rows that a request has fed before, the root not counted; ``words``:
    W, 0 if nobody asks what rows see.

    RuntimeError if shapes, dtypes or indices do not fit.
    """
    above = children.above
    return TreeBeam(
        *torch.ops.trtspec.expand_tree(
            *pool,
            children.begin,
            children.tokens,
            children.gains,
            None if above is None else above.candidates,
            width,
            chosen,
            first_bit,
            words,
            None if above is None else above.seen,
        )
    )


def keep_best(
    pool: TreePool, children: Children, nodes: int, chosen: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Complete the pool with ``children``, and keep ``nodes`` of its candidates, in their order:
    tokens ``[B, nodes] i64``, parents i32 as indices among them, and scores f32.

    ``chosen [nodes] i64`` are the candidates, ascending and closed under parents; None: the best.
    """
    above = children.above
    tokens, parents, scores = torch.ops.trtspec.keep_best(
        *pool,
        children.begin,
        children.tokens,
        children.gains,
        None if above is None else above.candidates,
        nodes,
        chosen,
    )
    return tokens, parents, scores


def marginal_trees(
    tokens: Tensor,
    gains: Tensor,
    starts: Tensor,
    lanes: Tensor,
    ranks: Tensor,
    nodes: int,
    keep_all: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Trees whose nodes of a depth all have the same children: ``tokens [B, D, count] i64``, best
    first, with ``gains`` f32.

    The candidates of depth d are number ``starts[d]`` to ``starts[d + 1] - 1`` (``[D + 1] i32``) of
    ``lanes`` and ``ranks [C] i32``: the parent's place among the nodes of the depth above, and the
    token's among those of the depth. The ``nodes`` best candidates of a depth are its nodes, best
    first, and the ``nodes`` best of these are kept. With ``keep_all`` all candidates are nodes, in
    their order. The results are those of `keep_best`, in the order of depths.
    """
    found: tuple[Tensor, Tensor, Tensor] = torch.ops.trtspec.marginal_trees(
        tokens, gains, starts, lanes, ranks, nodes, keep_all
    )
    return found


@torch.library.register_fake("trtspec::expand_tree")  # type: ignore[untyped-decorator]
def _expand_tree_fake(
    pool_tokens: Tensor,
    pool_parents: Tensor,
    pool_scores: Tensor,
    begin: int,
    tokens: Tensor,
    gains: Tensor,
    above: Tensor | None,
    width: int,
    chosen: Tensor | None,
    first_bit: int,
    words: int,
    seen_above: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    shape = (pool_tokens.shape[0], width)
    return (
        pool_tokens.new_empty(shape),
        pool_parents.new_empty(shape),
        pool_tokens.new_empty(shape),
        pool_tokens.new_empty((*shape, words)),
    )


@torch.library.register_fake("trtspec::keep_best")  # type: ignore[untyped-decorator]
def _keep_best_fake(
    pool_tokens: Tensor,
    pool_parents: Tensor,
    pool_scores: Tensor,
    begin: int,
    tokens: Tensor,
    gains: Tensor,
    above: Tensor | None,
    nodes: int,
    chosen: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    shape = (pool_tokens.shape[0], nodes)
    return pool_tokens.new_empty(shape), pool_parents.new_empty(shape), pool_scores.new_empty(shape)


@torch.library.register_fake("trtspec::marginal_trees")  # type: ignore[untyped-decorator]
def _marginal_trees_fake(
    tokens: Tensor,
    gains: Tensor,
    starts: Tensor,
    lanes: Tensor,
    ranks: Tensor,
    nodes: int,
    keep_all: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    shape = (tokens.shape[0], nodes)
    return tokens.new_empty(shape), lanes.new_empty(shape), gains.new_empty(shape)


# -- the reference ----------------------------------------------------------------------------


def best_scores(scores: Tensor, count: int) -> Tensor:
    """Indices ``[B, count]`` of the largest scores, descending, ties to the lowest index."""
    return torch.sort(scores, dim=1, descending=True, stable=True).indices[:, :count]


def _append(pool: TreePool, children: Children) -> tuple[Tensor, Tensor]:
    """The children's tokens and scores ``[B, rows * branching]``."""
    tokens, gains, begin, above = children
    batch = len(pool.tokens)
    gains = gains.nan_to_num(nan=-torch.inf, neginf=-torch.inf).clamp(max=0)
    if above is None:
        parents, scores = torch.full((batch, 1), -1, dtype=torch.int32), gains
    else:
        parents = above.candidates
        scores = pool.scores.gather(1, parents.long()).reshape(-1, 1) + gains
    parents = parents.repeat_interleave(tokens.shape[1], dim=1)
    tokens, scores = tokens.reshape(batch, -1), scores.reshape(batch, -1)
    own = slice(begin, begin + tokens.shape[1])
    pool.tokens[:, own], pool.parents[:, own], pool.scores[:, own] = tokens, parents, scores
    return tokens, scores


def expand_tree_reference(
    pool: TreePool,
    children: Children,
    width: int,
    first_bit: int,
    words: int,
    chosen: Tensor | None = None,
) -> TreeBeam:
    """`expand_tree`, written for reading."""
    tokens, scores = _append(pool, children)
    batch = len(tokens)
    best = best_scores(scores, width) if chosen is None else chosen.expand(batch, -1)
    lanes = best // children.tokens.shape[1]
    seen = torch.zeros(batch, width, words, dtype=torch.int64)
    if children.above is not None:
        seen = children.above.seen.gather(1, lanes[:, :, None].expand_as(seen))
    for place in range(width if words else 0):
        word, bit = divmod(first_bit + place, 64)
        seen[:, place, word] |= torch.ones((), dtype=torch.int64) << bit
    return TreeBeam(tokens.gather(1, best), (children.begin + best).int(), lanes, seen)


def keep_best_reference(
    pool: TreePool, children: Children, nodes: int, chosen: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """`keep_best`, written for reading."""
    _append(pool, children)
    kept = best_scores(pool.scores, nodes).sort(dim=1).values
    return _cut(pool, kept if chosen is None else chosen.expand(len(pool.scores), -1))


def _cut(pool: TreePool, kept: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    tokens, parents, scores = (x.gather(1, kept) for x in pool)
    nodes = torch.zeros_like(pool.parents)
    nodes.scatter_(1, kept, torch.arange(kept.shape[1], dtype=torch.int32).expand_as(kept))
    parents = torch.where(parents < 0, -1, nodes.gather(1, parents.clamp(min=0).long()))
    return tokens, parents, scores


def marginal_trees_reference(
    tokens: Tensor,
    gains: Tensor,
    starts: Tensor,
    lanes: Tensor,
    ranks: Tensor,
    nodes: int,
    keep_all: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """`marginal_trees`, written for reading."""
    gains = gains.nan_to_num(nan=-torch.inf, neginf=-torch.inf).clamp(max=0)
    of_depths = []
    above = gains.new_zeros(len(gains), 1)  # the root's score
    first = -1  # of the depth above, its place among all nodes
    for depth, (begin, end) in enumerate(
        zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
    ):
        lane, rank = lanes[begin:end].long(), ranks[begin:end].long()
        found = above[:, lane] + gains[:, depth, rank]
        best = torch.arange(end - begin).expand_as(found)
        if not keep_all:
            best = best_scores(found, nodes)
        parents = (first + lane[best]).int()
        of_depths.append(
            TreePool(tokens[:, depth, rank].gather(1, best), parents, found.gather(1, best))
        )
        first = 0 if depth == 0 else first + above.shape[1]
        above = of_depths[-1].scores
    pool = TreePool(*(torch.cat(columns, 1) for columns in zip(*of_depths, strict=True)))
    return pool if keep_all else _cut(pool, best_scores(pool.scores, nodes).sort(dim=1).values)
