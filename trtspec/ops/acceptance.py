"""Acceptance: the walk through a verified tree.

For every row of a tree it is known which token the target emits after that row's path (see
`trtspec.ops.sampling`). The walk starts at the root, emits the target's token, and descends to the
child that carries this token, until there is none. Whatever was drafted, the emitted tokens are
those that the target alone would have emitted; the draft only decides how many tokens one step
yields.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from trtspec.ops import native  # noqa: F401  registers the op


def accept(
    sampled: Tensor,
    tokens: Tensor,
    parents: Tensor,
    row_start: Tensor,
    forced: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Walk the trees of B requests packed into R rows.

    Request b owns rows row_start[b] .. row_start[b + 1] - 1: its root, then its nodes; or none.

    Args:
        sampled: int64 [R], the token that the target emits after each row.
        tokens: int64 [R], the draft token of each row (a root's is not read).
        parents: int32 [R], the row of the parent within the request (the root is 0), smaller than
            the row's own; not read for the root, where it is -1.
        row_start: int32 [B + 1], from 0 to R.
        forced: int32 [B], to time speculation: where it is 0 or more, the walk takes so many nodes
            whatever they carry, fewer in a shallower tree: the first node of that depth and those
            above it. It ends at a row whose ``sampled`` is negative.

    Returns:
        accepted_rows: int32 [B, P], the rows walked, within the request; the first is 0, the rest
            is padded with -1; P is the largest number of rows of a request. The tokens emitted are
            those that the rows behind the first carry, and `sampled` at the last, the bonus token.
        num_emitted: int32 [B], the number of rows walked, at least 1; 0 of a request without rows.

    P depends on the values of row_start, so the op runs eagerly and is not exported.
    RuntimeError if the tensors do not fit or a parent does not come before its child. On CUDA,
    where the host does not look at values, P is R, and such a parent gives num_emitted 0.
    """
    accepted_rows, num_emitted = torch.ops.trtspec.accept(
        sampled, tokens, parents, row_start, forced
    )
    return accepted_rows, num_emitted


def accept_trees(
    sampled: Tensor, tokens: Tensor, parents: Tensor, row_start: Tensor, width: int
) -> tuple[Tensor, Tensor]:
    """`accept` as engines call it: accepted_rows is [B, width], where width is at least the most
    rows of a request. Rows after row_start[B] are ignored."""
    # CUDA's op reads no others, and nobody waits for values there.
    end = None if sampled.device.type == "cuda" else int(row_start[-1])
    walked, num_emitted = accept(sampled[:end], tokens[:end], parents[:end], row_start)
    both = min(width, walked.shape[1])
    accepted_rows = walked.new_full((len(walked), width), -1)
    accepted_rows[:, :both] = walked[:, :both]
    return accepted_rows, num_emitted


def accept_reference(
    sampled: Tensor,
    tokens: Tensor,
    parents: Tensor,
    row_start: Tensor,
    forced: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`accept`, written for reading."""
    starts = row_start.tolist()
    walks: list[list[int]] = []
    counts = [-1] * (len(starts) - 1) if forced is None else forced.tolist()
    for (first, end), count in zip(pairwise(starts), counts, strict=True):
        emitted = sampled[first:end].tolist()
        drafted = tokens[first:end].tolist()
        above = parents[first:end].tolist()
        if count >= 0:
            walks.append(_forced_walk(emitted, above, count))
            continue
        walk = [0][: end - first]
        while walk:
            here = walk[-1]
            children = (
                row
                for row in range(1, end - first)
                if above[row] == here and drafted[row] == emitted[here]
            )
            child = next(children, None)
            if child is None:
                break
            walk.append(child)
        walks.append(walk)
    width = max((end - first for first, end in pairwise(starts)), default=0)
    accepted_rows = torch.full((len(walks), width), -1, dtype=torch.int32)
    for b, walk in enumerate(walks):
        accepted_rows[b, : len(walk)] = torch.tensor(walk, dtype=torch.int32)
    return accepted_rows, torch.tensor([len(walk) for walk in walks], dtype=torch.int32)


def _forced_walk(emitted: list[int], above: list[int], count: int) -> list[int]:
    """The rows down to the first of depth ``count``, or of the deepest there is."""
    paths: list[list[int]] = [[0][: len(above)]]
    for row in range(1, len(above)):
        paths.append([*paths[above[row]], row])
    walk = max((path for path in paths if len(path) <= count + 1), key=len)
    broken = (place + 1 for place, row in enumerate(walk) if emitted[row] < 0)
    return walk[: next(broken, len(walk))]
