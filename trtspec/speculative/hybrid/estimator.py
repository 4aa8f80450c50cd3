"""AcceptanceEstimator: how likely a drafter's nodes are to be accepted, learned while serving."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from trtspec.ops.tree import TokenTree

NUM_DEPTHS = 12
NUM_LEVELS = 20

_TRUST_IN_DRAFTER = 2.0  # nodes that a drafter's own probability counts for
_TRUST_IN_LEVEL = 16.0  # nodes that the average over all depths counts for
_MOST_NEW = 64  # of so many observations, one more changes the estimates little
_MEMORY = 512.0  # nodes of a cell after which older ones count half
_NOISE = 2.0  # standard deviations
_LEAST, _MOST = 0.01, 0.99  # chances are kept off 0 and 1: both are always possible


class Drift:
    """How acceptance has lately differed from what was expected, as an exponent.

    A row with drafts *hits* if one of them carries its next token. With shares h of rows that hit
    and x that were expected to, a chance p has lately been p ** (ln h / ln x); an exponent changes
    the chances along a path alike. Older rows count less. While there are few rows, those of
    `parent` stand in; without a parent, nothing has changed. A difference within the noise of the
    rows does not count.
    """

    def __init__(self, memory: float, trust: float, parent: Drift | None = None) -> None:
        self._kept = 1.0 - 1.0 / memory
        self._trust = trust
        self._parent = parent
        self._rows = self._hits = self._expected = 0.0
        self._exponent: float | None = None

    def observe(self, rows: int, hits: int, expected: float) -> None:
        """Add that many rows, of which `hits` hit and `expected` were expected to."""
        kept = self._kept**rows
        self._rows = kept * self._rows + rows
        self._hits = kept * self._hits + hits
        self._expected = kept * self._expected + expected
        self._exponent = None

    @property
    def exponent(self) -> float:
        """1: nothing has changed."""
        if self._exponent is None:
            self._exponent = self._measure()
        return self._exponent

    def _measure(self) -> float:
        hits, expected = (_clip(rate) for rate in self._rates())
        noise = _NOISE * math.sqrt(expected * (1 - expected) / (self._rows + self._trust))
        away = hits - expected
        # The nonnegative garrote (Breiman 1995): nothing within the noise, nearly all far beyond.
        hits = expected + (away - noise**2 / away if abs(away) > noise else 0.0)
        return math.log(hits) / math.log(expected)

    def _rates(self) -> tuple[float, float]:
        """The shares of rows that hit and of those that were expected to."""
        if self._parent is not None:
            hits, expected = self._parent._rates()
        else:
            hits = expected = self._expected / self._rows if self._rows else 0.5
        count = self._rows + self._trust
        return (
            (self._hits + self._trust * hits) / count,
            (self._expected + self._trust * expected) / count,
        )


class AcceptanceEstimator:
    """Calibrates the scores of one drafter by what became of its earlier nodes.

    A node whose parent is accepted has a cell by its depth and by the probability that the drafter
    gives it, in levels (`TokenTree.calibrated`). Its chance is the share of nodes in the cell that
    were accepted. Where a cell has few nodes, the share is drawn towards that of its level at all
    depths, and that share towards the drafter's own figure. Old observations fade. The chance of a
    path is the product along it.
    """

    def __init__(self) -> None:
        # Lists, as single entries are counted.
        self._verified = [0.0] * (NUM_DEPTHS * NUM_LEVELS)
        self._accepted = list(self._verified)
        self._own = np.array([_clip(chance) for chance in _level_middles()])
        self._gains = torch.zeros(0)
        self._chances: list[float] = []
        self._num_observed = self._num_new = 0  # nodes; new: since the gains were estimated
        self._update()

    def calibrate(self, trees: Sequence[TokenTree], exponents: Sequence[float]) -> list[TokenTree]:
        """The trees with the ln of the estimated chances of their paths as scores, in place of the
        drafter's scores. `exponents`: of each tree, see `Drift`."""
        if self._num_new * _MOST_NEW > self._num_observed:
            self._update()
        return TokenTree.calibrated(trees, self._gains, exponents)

    def observe(
        self, tree: TokenTree, tokens: Sequence[int], verified: TokenTree | None = None
    ) -> tuple[int, int, float]:
        """The target emitted `tokens` behind the root of `tree`, which has its drafter's scores.
        The children of each row on the way are known to be right or wrong, verified or not; with
        `verified`, only nodes of that tree count.

        Returns for `Drift.observe`: the rows on the way that had drafts, how many of these hit, and
        how many were expected to.
        """
        reached, taken, cells = tree.outcomes(tokens, verified, (NUM_DEPTHS, NUM_LEVELS))
        if not reached:
            return 0, 0, 0.0
        expected = sum(self._chances[cell] for cell in cells)
        for cell, was_taken in zip(cells, taken, strict=True):
            if self._verified[cell] >= _MEMORY:
                self._verified[cell] *= 0.5
                self._accepted[cell] *= 0.5
            self._verified[cell] += 1.0
            self._accepted[cell] += was_taken
        self._num_new += len(taken)
        self._num_observed += len(taken)
        return int(tree.rows[2, reached[-1] + 1]), sum(taken), expected

    def _update(self) -> None:
        """Estimate all chances anew."""
        self._num_new = 0
        verified = np.array(self._verified).reshape(NUM_DEPTHS, NUM_LEVELS)
        accepted = np.array(self._accepted).reshape(NUM_DEPTHS, NUM_LEVELS)
        pooled = (accepted.sum(0) + _TRUST_IN_DRAFTER * self._own) / (
            verified.sum(0) + _TRUST_IN_DRAFTER
        )
        chances = (accepted + _TRUST_IN_LEVEL * pooled) / (verified + _TRUST_IN_LEVEL)
        chances = np.clip(chances, _LEAST, _MOST)
        self._gains = torch.from_numpy(np.log(chances).astype(np.float32))
        self._chances = chances.reshape(-1).tolist()


def _level_middles() -> list[float]:
    """The probability in the middle of each level of `TokenTree.calibrated`."""
    return [2.0 ** -((2.0 ** ((level + 0.5) / 4.0) - 1.0) / 4.0) for level in range(NUM_LEVELS)]


def _clip(chance: float) -> float:
    return min(max(chance, _LEAST), _MOST)
