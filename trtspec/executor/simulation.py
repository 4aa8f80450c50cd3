"""SimulatedAcceptance: forced acceptance rates, to time speculation without a trained draft."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from trtspec.executor.request import Request
from trtspec.ops.sampling import PHILOX_MULTIPLIERS, PHILOX_ROUNDS, PHILOX_WEYL
from trtspec.ops.tree import TokenTree

_WORD = 0xFFFFFFFF
# The last counter word of the sampling noise is 0: another one makes the draws independent of it.
_STREAM = 1


def uniform(seed: int, sample_index: int, step: int) -> float:
    """A number in (0, 1), a pure function of its arguments: word 0 of Philox4x32-10 with the key
    and the counter words of `trtspec.ops.sampling`, but for the last one.

    Python's integers do here in microseconds what ten rounds of tensor operations would take a
    third of a millisecond for.
    """
    c0, c1, c2, c3 = 0, step & _WORD, sample_index & _WORD, _STREAM
    k0, k1 = seed & _WORD, seed >> 32 & _WORD
    for _ in range(PHILOX_ROUNDS):
        a, b = PHILOX_MULTIPLIERS[0] * c0, PHILOX_MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & _WORD, (a >> 32) ^ c3 ^ k1, a & _WORD
        k0, k1 = (k0 + PHILOX_WEYL[0]) & _WORD, (k1 + PHILOX_WEYL[1]) & _WORD
    return (c0 + 0.5) / 2.0**32


class SimulatedAcceptance:
    """Replaces the target's verification of drafts by chance, so that given rates are met.

    ``rates[i]`` is the share of steps that accept a draft at depth i + 1 or deeper: unconditional,
    so never increasing; beyond the last one it is 0. They are met where trees are deep enough. The
    text is then NOT the target's: it is what the drafts say. The draws are keyed by a request's
    seed, sample index and number of steps: a run repeats itself, whatever the batches, and runs
    that draft more or less are as lucky as each other, step by step.
    """

    def __init__(self, rates: Sequence[float]) -> None:
        """``rates`` as `DecodingConfig.simulate_acceptance` has checked them."""
        self.rates = tuple(rates)

    def accepted(self, request: Request) -> int:
        """Drafts that the request's step under way is to accept, were its tree deep enough."""
        draw = uniform(request.seed, request.sample_index, request.num_steps)
        return sum(draw < rate for rate in self.rates)

    def force(
        self, request: Request, tree: TokenTree, sampled: npt.NDArray[np.int64], logits: Tensor
    ) -> None:
        """See `AcceptanceRule.force`: the drawn number of drafts is accepted.

        Rows along one path get the token of the next node; the row where it ends keeps its token
        unless a child carries it, then it gets the lowest id that no child carries and that does
        not end the text. A row without a token (-1) stays one: a broken model must not pass. The
        path prefers earlier children, and a shallower tree is accepted whole along it.
        """
        if not len(tree):
            return
        children = _children(tree)
        path = _path(children, _heights(tree), self.accepted(request))
        row = 0
        for node in path:
            if sampled[row] < 0:
                return
            sampled[row] = tree.tokens[node]
            row = node + 1
        carried = set(children.get(row - 1, {}))
        if int(sampled[row]) in carried:
            barred = carried.union(request.eos_token_ids, request.params.stop_token_ids)
            free = (token for token in range(logits.shape[1]) if token not in barred)
            sampled[row] = next(free, sampled[row])


def _children(tree: TokenTree) -> dict[int, dict[int, int]]:
    """Children of each node (-1: the root) by token, in order. Of two siblings with one token the
    walk takes the first, so the second one counts for nothing."""
    children: dict[int, dict[int, int]] = {}
    for node, (token, parent) in enumerate(
        zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True)
    ):
        children.setdefault(parent, {}).setdefault(token, node)
    return children


def _heights(tree: TokenTree) -> list[int]:
    """Depth of the deepest descendant of every node, its own depth included; the root's last."""
    reached = [*tree.depths.tolist(), 0]
    for node in range(len(tree) - 1, -1, -1):
        parent = int(tree.parents[node])
        reached[parent] = max(reached[parent], reached[node])
    return reached


def _path(children: dict[int, dict[int, int]], reached: Sequence[int], length: int) -> list[int]:
    """At most ``length`` nodes from a child of the root down: at each level the first child that
    leads deep enough, or else the one that leads deepest."""
    path: list[int] = []
    node = -1
    while len(path) < length and node in children:
        nodes = children[node].values()
        wanted = min(length, max(reached[n] for n in nodes))
        node = next(n for n in nodes if reached[n] >= wanted)
        path.append(node)
    return path
