"""Default static trees for heads that nobody has measured: the nodes most likely to be accepted."""

from __future__ import annotations

import heapq

from trtspec.config.tree import MAX_TOPK, Choices

FIRST_HIT = 0.6
NEXT_HEAD = 0.8
"""Assumption about the heads: the first guess of head h is right with a probability of FIRST_HIT *
NEXT_HEAD^h, guess r (from 0) with (r + 1)^-2 of that."""
LEAST_CHANCE = 0.025
"""A default tree ends where the next node would be accepted less often than this."""

_Heap = list[tuple[float, tuple[int, ...]]]


def default_choices(num_heads: int, num_nodes: int | None = None) -> Choices:
    """The ``num_nodes`` most probable paths over ``num_heads`` heads, or all those with a
    probability of at least `LEAST_CHANCE`.

    The expected number of accepted drafts of a tree is the sum of its nodes' probabilities, so
    adding the most probable node next yields the best tree of every size. The first path goes
    through all heads whatever its probability, since they were asked for.
    """
    spine = tuple((0,) * depth for depth in range(1, num_heads + 1))
    chosen = set(spine)
    heap: _Heap = []
    _push(heap, (0,))
    _push(heap, (1,))
    while heap and (num_nodes is None or len(chosen) < num_nodes):
        negative, path = heapq.heappop(heap)
        if num_nodes is None and -negative < LEAST_CHANCE:
            break
        chosen.add(path)
        if path[-1] + 1 < MAX_TOPK and path != (0,):  # (1,) is there from the beginning
            _push(heap, (*path[:-1], path[-1] + 1))
        if len(path) < num_heads:
            _push(heap, (*path, 0))
    return tuple(sorted(chosen, key=lambda path: (len(path), path)))


def _push(heap: _Heap, path: tuple[int, ...]) -> None:
    heapq.heappush(heap, (-_chance(path), path))


def _chance(path: tuple[int, ...]) -> float:
    chance = 1.0
    for head, rank in enumerate(path):
        chance *= FIRST_HIT * NEXT_HEAD**head / (rank + 1) ** 2
    return chance
