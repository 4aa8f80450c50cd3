"""DraftProfile: what a drafter gives a request, on average."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trtspec.ops.tree import TokenTree

Floats = npt.NDArray[np.float64]
_WEIGHT = 0.1  # of a tree, at the least


class DraftProfile:
    """Mean chances ``[max_nodes]`` of a request's nodes, the best first, 0 behind them.

    whole: of all nodes. first_step: of those of depth 1. None before the first tree.
    """

    def __init__(self, max_nodes: int) -> None:
        self.whole: Floats | None = None
        self.first_step: Floats | None = None
        self._max_nodes = max_nodes
        self._num_trees = 0

    def observe(self, tree: TokenTree, first_step_only: bool) -> None:
        """Take in a calibrated tree; ``first_step_only``: deeper nodes were not asked for."""
        scores, depths = tree.scores, tree.rows[2, 1:]
        assert scores is not None, "a calibrated tree has scores"
        first = self._falling(scores[depths == 1])
        if self.whole is None or self.first_step is None:
            self.whole, self.first_step = np.zeros_like(first), np.zeros_like(first)
        self._num_trees += 1
        weight = max(_WEIGHT, 1 / self._num_trees)
        before = float(self.first_step[0])
        seen = first > 0  # a whole tree may have left out some of its first nodes
        self.first_step[seen] += weight * (first - self.first_step)[seen]
        if not first_step_only:
            self.whole += weight * (self._falling(scores) - self.whole)
        elif before > 0:  # deeper nodes are behind these
            scale = float(self.first_step[0]) / before
            self.whole = np.minimum(self.whole * scale, 1.0)

    def _falling(self, scores: npt.NDArray[np.float32]) -> Floats:
        """The chances of nodes, the best first."""
        chances = np.zeros(self._max_nodes)
        chances[: len(scores)] = np.exp(-np.sort(-scores))
        return chances
