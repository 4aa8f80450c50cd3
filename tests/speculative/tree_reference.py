"""Trees grown node by node in plain Python, to compare rollouts with."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trtspec.config.tree import TreeShape
from trtspec.ops.sampling import SamplingColumns

Path = tuple[int, ...]
# (path of tokens, how many) -> that many (token, log probability), the best first.
Children = Callable[[Path, int], list[tuple[int, np.float32]]]


@dataclass(frozen=True)
class Node:
    token: int
    parent: int  # index in the list it is part of, -1 = the root
    score: np.float32
    path: Path


def grow(children: Children, shape: TreeShape) -> list[Node]:
    """The tree of that shape, in the order of its rows."""
    if shape.choices is not None:
        return _static(children, shape.choices)
    return _dynamic(children, shape.topk, shape.num_steps, shape.num_draft_tokens)


def _expand(children: Children, parent: int, node: Node | None, count: int) -> list[Node]:
    path, base = (node.path, node.score) if node else ((), np.float32(0))
    return [
        Node(token, parent, base + gain, (*path, token)) for token, gain in children(path, count)
    ]


def _dynamic(children: Children, k: int, depth: int, rows: int) -> list[Node]:
    """EAGLE-2's ``topK_genrate``: expand the k best of each depth, keep the best of all."""
    pool = _expand(children, -1, None, k)
    beam = sorted(range(k), key=lambda i: -pool[i].score)
    for _ in range(1, depth):
        level = [node for i in beam for node in _expand(children, i, pool[i], k)]
        best = sorted(range(k * k), key=lambda i: -level[i].score)[:k]  # stable
        beam = [len(pool) + i for i in best]
        pool += level
    return _kept(pool, rows - 1)


def grow_product(children: Children, shape: TreeShape) -> list[Node]:
    """The tree of that shape where a node's children do not depend on it: static as above, else of
    all paths of its depth, none left out on the way, the best."""
    if shape.choices is not None:
        return _static(children, shape.choices)
    pool: list[Node] = []
    above: list[tuple[int, Node | None]] = [(-1, None)]
    for _ in range(shape.num_steps):
        level = [node for i, parent in above for node in _expand(children, i, parent, shape.topk)]
        level.sort(key=lambda node: -node.score)  # stable
        above = [(len(pool) + i, node) for i, node in enumerate(level)]
        pool += level
    return _kept(pool, shape.num_nodes)


def heap_scores(children: Children, shape: TreeShape) -> list[np.float32]:
    """DDTree as published: of the paths so far the best leaves the heap, and its next sibling and
    its first child enter it. The scores of its nodes, falling."""
    found: list[np.float32] = []
    tops = [children((0,) * depth, shape.topk) for depth in range(shape.num_steps)]
    heap = [(-tops[0][0][1], (0,), np.float32(0))]  # score, ranks, the parent's score
    while len(found) < shape.num_nodes:
        score, ranks, above = heapq.heappop(heap)
        found.append(np.float32(-score))
        depth = len(ranks)
        if ranks[-1] + 1 < shape.topk:
            sibling = above + tops[depth - 1][ranks[-1] + 1][1]
            heapq.heappush(heap, (-sibling, (*ranks[:-1], ranks[-1] + 1), above))
        if depth < shape.num_steps:
            child = np.float32(-score) + tops[depth][0][1]
            heapq.heappush(heap, (-child, (*ranks, 0), np.float32(-score)))
    return found


def _kept(pool: list[Node], count: int) -> list[Node]:
    kept = sorted(sorted(range(len(pool)), key=lambda i: -pool[i].score)[:count])
    index = {-1: -1, **{old: new for new, old in enumerate(kept)}}
    # A KeyError here means that a node was kept without its parent.
    return [Node(pool[i].token, index[pool[i].parent], pool[i].score, pool[i].path) for i in kept]


def _static(children: Children, choices: Sequence[Path]) -> list[Node]:
    """The nodes that the ranks name, as EAGLE-1 and Medusa."""
    index: dict[Path, int] = {}
    nodes: list[Node] = []
    for choice in choices:
        parent = index.get(choice[:-1], -1)
        above = nodes[parent] if parent >= 0 else None
        index[choice] = len(nodes)
        nodes.append(_expand(children, parent, above, choice[-1] + 1)[choice[-1]])
    return nodes


def assert_equal_trees(
    nodes: Sequence[Node], tokens: Tensor, parents: Tensor, scores: Tensor
) -> None:
    """One request's part of a rollout is the tree ``nodes``, bit for bit; what the filters exclude
    needs nothing but its score of -inf."""
    assert scores.tolist() == [float(node.score) for node in nodes]
    finite = scores.isfinite().tolist()
    for i, node in enumerate(nodes):
        if finite[i]:
            assert (tokens[i].item(), parents[i].item()) == (node.token, node.parent), i


def columns(*rows: tuple[float, int, float, float, int, int, int]) -> SamplingColumns:
    """Sampling values of requests: temperature, top_k, top_p, min_p, seed, sample_index,
    output_index."""
    kinds = (torch.float32, torch.int32, torch.float32, torch.float32, *[torch.int64] * 3)
    values = zip(zip(*rows, strict=True), kinds, strict=True)
    return SamplingColumns(*(torch.tensor(column, dtype=kind) for column, kind in values))
