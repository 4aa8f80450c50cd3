"""Acceptance: how likely a drafter's nodes are to be accepted, learned while serving."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from trtspec.ops.tree import TokenTree
from trtspec.speculative.hybrid.costs import Floats, Mean

NUM_DEPTHS, NUM_LEVELS = 12, 20
_TRUST_IN_DRAFTER = 2.0  # nodes that a drafter's own probability counts for: few, as many boast
_TRUST_IN_LEVEL = 16.0  # nodes of all depths that stand in for one: more pools depths that differ
_MEMORY = 512.0  # nodes of a cell after which older ones count half: fewer are noise
_HALF_LIFE, _HALF_LIFE_OF_ALL = 32.0, 64.0
"""Rows of a text, and of all, after which older ones count half: fewer are noise, or what a single
text was like, more miss a change."""
_TRUST = 16.0  # rows that what is known already counts for: more see a change late, fewer chance
_HOPED, HOPE = 0.9, 8
"""What is not known is hoped to be accepted so often a node, half of that after so many steps: less
hope or fewer steps give up what would pay by chance, more draft in vain for longer."""
_USUAL_HALF_LIFE = 7.0  # steps that the usual tree is a mean of: fewer are noise, more are late
_LEAST, _MOST = 0.01, 0.99  # chances are kept off 0 and 1: both are always possible


class Drift:
    """How acceptance has lately differed from what was expected, as an exponent.

    A row with drafts *hits* if one of them carries its next token. With shares h of rows that hit
    and x that were expected to, a chance p has lately been p ** (ln h / ln x), which changes the
    chances along a path alike. It begins with the rates of all.
    """

    def __init__(self, half_life: float, hits: float = 0.5, expected: float = 0.5) -> None:
        self._hits, self._expected = (Mean(half_life, rate, _TRUST) for rate in (hits, expected))

    @property
    def rates(self) -> tuple[float, float]:
        """Shares of rows that hit, and that were expected to."""
        hits, expected = self._hits.value, self._expected.value
        return min(max(hits, _LEAST), _MOST), min(max(expected, _LEAST), _MOST)

    def observe(self, rows: int, hits: int, expected: float) -> None:
        """Add that many rows, of which `hits` hit and `expected` were expected to."""
        self._hits.observe(hits / rows, rows)
        self._expected.observe(expected / rows, rows)

    @property
    def exponent(self) -> float:
        """1: nothing has changed."""
        hits, expected = self.rates
        return math.log(hits) / math.log(expected)


class Acceptance:
    """Calibrates the scores of one drafter by what became of its earlier nodes, of all texts and of
    each request, and knows its usual tree.

    A node whose parent is accepted has a cell by its depth and by the probability that the drafter
    gives it, in levels (`TokenTree.calibrated`). Its chance is the share of nodes in the cell that
    were accepted, drawn towards that of its level at all depths, and that towards the drafter's own
    figure, while there are few. The chance of a path is the product along it, to the power of the
    request's `Drift`. drifts: by request.
    """

    def __init__(self, max_nodes: int, max_depth: int) -> None:
        self._verified, self._accepted = np.zeros((2, NUM_DEPTHS * NUM_LEVELS))
        middles = [2.0 ** -((2.0 ** ((i + 0.5) / 4.0) - 1.0) / 4.0) for i in range(NUM_LEVELS)]
        self._own = np.clip(middles, _LEAST, _MOST)
        self._num_asked = 0  # since it was last hoped
        self._hoped = np.pad(_HOPED ** np.arange(1.0, max_depth + 1), (0, max_nodes - max_depth))
        self._all, self.drifts = Drift(_HALF_LIFE_OF_ALL), dict[int, Drift]()
        self._usual = Mean(_USUAL_HALF_LIFE, np.zeros(max_nodes))  # of a request, the best first
        self._estimate()

    def hope(self) -> None:
        """What was known may have changed for the better."""
        self._num_asked = 0

    @property
    def is_tried(self) -> bool:
        """Whether so little is known since a hope that chance would be the judge."""
        return self._num_asked <= HOPE

    def gains(self, ids: Sequence[int]) -> Tensor:
        """By depth and level, ln of a node's chance once its parent is right: of these requests
        in the mean, float32 [depths, levels]."""
        exponents = self._exponents(ids)
        return self._gains * (sum(exponents) / len(exponents))

    def calibrate(self, ids: Sequence[int], trees: Sequence[TokenTree]) -> list[TokenTree]:
        """The trees drafted for these requests, with the ln of the estimated chances of their paths
        as scores."""
        self._num_asked += 1
        if not any(map(len, trees)):
            return list(trees)
        self._estimate()
        exponents = self._exponents(ids)
        found = TokenTree.calibrated(trees, self._gains, exponents)
        own = (ranked(found) ** (1 / np.array(exponents))[:, None]).mean(0)
        self._usual.observe(np.pad(own, (0, len(self._hoped) - len(own))))
        return found

    def usual(self, ids: Sequence[int]) -> Floats:
        """Chances ``[B, max_nodes]`` of the nodes that it would draft for these requests."""
        usual: Floats = self._usual.value ** np.array(self._exponents(ids))[:, None]
        usual += 0.5 ** (self._num_asked / HOPE) * np.maximum(self._hoped - usual, 0.0)
        return usual

    def observe(
        self, request_id: int, tree: TokenTree, tokens: Sequence[int], verified: TokenTree | None
    ) -> None:
        """The target emitted `tokens` behind the root of `tree`, which has its drafter's scores.
        The children of each row on the way are known to be right or wrong, verified or not; with
        `verified`, only nodes of that tree count."""
        reached, taken, cells = tree.outcomes(tokens, verified, (NUM_DEPTHS, NUM_LEVELS))
        if not reached:
            return
        expected = float(self._chances[cells].sum())
        for cell, was_taken in zip(cells, taken, strict=True):
            if self._verified[cell] >= _MEMORY:
                self._verified[cell] *= 0.5
                self._accepted[cell] *= 0.5
            self._verified[cell] += 1.0
            self._accepted[cell] += was_taken
        rows = int(tree.rows[2, reached[-1] + 1])
        own = self.drifts.setdefault(request_id, Drift(_HALF_LIFE, *self._all.rates))
        for drift in (self._all, own):
            drift.observe(rows, sum(taken), expected)

    def _exponents(self, ids: Sequence[int]) -> list[float]:
        return [self.drifts.get(request_id, self._all).exponent for request_id in ids]

    def _estimate(self) -> None:
        """Estimate all chances anew."""
        trust, shape = _TRUST_IN_DRAFTER, (NUM_DEPTHS, NUM_LEVELS)
        verified, accepted = self._verified.reshape(shape), self._accepted.reshape(shape)
        level = (accepted.sum(0) + trust * self._own) / (verified.sum(0) + trust)
        chances = (accepted + _TRUST_IN_LEVEL * level) / (verified + _TRUST_IN_LEVEL)
        self._gains = torch.from_numpy(np.log(chances).astype(np.float32))
        self._chances = chances.reshape(-1)


def ranked(trees: Sequence[TokenTree]) -> Floats:
    """[B, W]: the chances of the nodes of each calibrated tree, falling; 0 where it has fewer."""
    chances = np.zeros((len(trees), max(map(len, trees))))
    for row, tree in zip(chances, trees, strict=True):
        if len(tree):
            assert tree.scores is not None, "a calibrated tree has scores"
            row[: len(tree)] = np.exp(-np.sort(-tree.scores))
    return chances
