"""Trees grown node by node in plain Python, to compare rollouts with."""

from __future__ import annotations

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
    beam = list(range(k))
    for _ in range(1, depth):
        level = [node for i in beam for node in _expand(children, i, pool[i], k)]
        best = sorted(range(k * k), key=lambda i: -level[i].score)[:k]  # stable
        beam = [len(pool) + i for i in best]
        pool += level
    kept = sorted(sorted(range(len(pool)), key=lambda i: -pool[i].score)[: rows - 1])
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
