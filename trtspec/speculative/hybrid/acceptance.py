"""Acceptance: the probability that a drafter's nodes are accepted, learned while serving."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from trtspec.ops.draft_batch import DraftBatch
from trtspec.speculative.hybrid.costs import Floats, Mean

NUM_DEPTHS, NUM_LEVELS = 12, 20
_TRUST_IN_DRAFTER = 2.0  # nodes that a drafter's own probability counts for: few, as many boast
_TRUST_IN_LEVEL = 16.0  # nodes of all depths that stand in for one: more pools depths that differ
_MEMORY = 512.0  # nodes of a cell after which older ones count half: fewer are noise
_HALF_LIFE = 32.0  # rows of a text that count half: fewer are noise, more miss a change of it
_HOPED = 0.9  # what is hoped of a node: less gives up what would pay, more drafts in vain
_USUAL_HALF_LIFE = 7.0  # steps that the usual tree is a mean of: fewer are noise, more are late
_LEAST, _MOST = 0.01, 0.99  # chances are kept off 0 and 1: both are always possible


class Drift:
    """How acceptance in one text has recently differed from what was expected, as an exponent.

    A row with drafts *hits* if one of them carries its next token. If a share h of rows hits, and a
    share x was expected to, a probability p has recently become p ** (ln h / ln x), which changes
    the probabilities along a path alike. 1: no change.
    """

    def __init__(self) -> None:
        self._hits, self._expected = (Mean(_HALF_LIFE, 0.5, math.inf) for _ in range(2))
        self.exponent = 1.0

    def observe(self, rows: int, hits: int, expected: float) -> None:
        """Add that many rows, of which `hits` hit and `expected` were expected to hit."""
        self._hits.observe(hits / rows, rows)
        self._expected.observe(expected / rows, rows)
        rates = (min(max(m.value, _LEAST), _MOST) for m in (self._hits, self._expected))
        self.exponent = math.log(next(rates)) / math.log(next(rates))


class Acceptance:
    """Calibrates the scores of one drafter by the outcome of its earlier nodes, over all texts and
    for each request, and knows its typical tree.

    A node whose parent is accepted belongs to a cell by its depth and by the level of the
    probability that the drafter gives it (`DraftBatch.calibrated`). Its estimate is the share of
    nodes in the cell that were accepted, shrunk towards that of its level at all depths, which is
    itself shrunk towards the drafter's own figure, while counts are small. The estimate for a path
    is the product along it, to the power of the request's `Drift`. drifts: by request.
    """

    def __init__(self, max_nodes: int, max_depth: int) -> None:
        self._counts = np.zeros((2, NUM_DEPTHS * NUM_LEVELS))  # verified, accepted
        middles = [2.0 ** -((2.0 ** ((i + 0.5) / 4.0) - 1.0) / 4.0) for i in range(NUM_LEVELS)]
        self._own = np.clip(middles, _LEAST, _MOST)
        self._hoped = np.pad(_HOPED ** np.arange(1.0, max_depth + 1), (0, max_nodes - max_depth))
        self.drifts: dict[int, Drift] = {}
        # Of a request that may draft so deep, the best first.
        self._usual = {max_depth: Mean(_USUAL_HALF_LIFE, np.zeros(max_nodes))}
        self._max_depth = max_depth
        self._estimate()

    def gains(self, ids: Sequence[int]) -> Tensor:
        """Ln of a node's probability given that its parent is right, for these requests [depths,
        levels]."""
        exponents = self._exponents(ids)
        return self._gains * (sum(exponents) / len(exponents))

    def calibrate(
        self, ids: Sequence[int], drafts: DraftBatch, depths: Sequence[int]
    ) -> DraftBatch:
        """The drafts for these requests, which allow trees of those ``depths``, with the ln of the
        estimated path probabilities as scores."""
        if not any(drafts.counts):
            return drafts
        self._estimate()
        exponents = self._exponents(ids)
        found = drafts.calibrated(self._gains, exponents)
        chances = found.chances ** (1 / np.array(exponents))[:, None]
        limits = np.minimum(depths, self._max_depth)
        for depth in set(limits.tolist()):
            own = np.zeros_like(self._hoped)
            own[: chances.shape[1]] = chances[limits == depth].mean(0)
            self._usual_of(depth).observe(own)
        return found

    def usual(self, ids: Sequence[int], hope: float, depths: Sequence[int]) -> Floats:
        """Probabilities ``[B, max_nodes]`` of the nodes that it would draft for these requests,
        which allow trees of those ``depths``, including the optimism for unknown drafters."""
        limits = np.minimum(depths, self._max_depth)
        usual: Floats = np.stack([self._usual_of(depth).value for depth in limits.tolist()])
        usual = usual ** np.array(self._exponents(ids))[:, None]
        hoped = np.where(np.arange(len(self._hoped)) < limits[:, None], self._hoped, 0.0)
        usual += hope * np.maximum(hoped - usual, 0.0)
        return usual

    def observe(
        self,
        request_id: int,
        drafts: DraftBatch,
        item: int,
        tokens: Sequence[int],
        verified: DraftBatch | None,
    ) -> None:
        """The target emitted `tokens` after the root of a request, that item of ``drafts``, which
        have their drafter's scores. The children of each row on the path are known to be right or
        wrong, verified or not; with `verified`, only nodes that the item has there count."""
        rows, taken, cells = drafts.outcomes(item, tokens, verified, (NUM_DEPTHS, NUM_LEVELS))
        if not rows:
            return
        expected = float(self._chances[cells].sum())
        for counts, seen in zip(self._counts, (None, taken), strict=True):
            counts += np.bincount(cells, seen, len(counts))
        self._counts[:, self._counts[0] > _MEMORY] *= 0.5
        self.drifts.setdefault(request_id, Drift()).observe(rows, sum(taken), expected)

    def _usual_of(self, depth: int) -> Mean:
        """What is known for requests of that depth; at first, what deeper ones are drafted."""
        deepest = self._usual[self._max_depth].value
        return self._usual.setdefault(depth, Mean(_USUAL_HALF_LIFE, deepest))

    def _exponents(self, ids: Sequence[int]) -> list[float]:
        return [self.drifts[i].exponent if i in self.drifts else 1.0 for i in ids]

    def _estimate(self) -> None:
        """Recompute all estimates."""
        trust = _TRUST_IN_DRAFTER
        verified, accepted = self._counts.reshape(2, NUM_DEPTHS, NUM_LEVELS)
        level = (accepted.sum(0) + trust * self._own) / (verified.sum(0) + trust)
        chances = (accepted + _TRUST_IN_LEVEL * level) / (verified + _TRUST_IN_LEVEL)
        self._gains = torch.from_numpy(np.log(chances).astype(np.float32))
        self._chances = chances.reshape(-1)
