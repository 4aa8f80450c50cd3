"""AcceptanceRule: replaces the target's verification of drafts, only on request."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from trtspec.executor.step.request import Request
from trtspec.executor.step.simulation import SimulatedAcceptance
from trtspec.ops.tree import TokenTree


class HostRule(Protocol):
    """Decides which drafts are accepted, given what the target emits for each row."""

    def force(
        self, request: Request, tree: TokenTree, sampled: npt.NDArray[np.int64], logits: Tensor
    ) -> None:
        """Change a request's ``sampled`` (int64 [1 + n], what the target emits after the root and
        after each node; -1: no token) so that the walk of `trtspec.ops.acceptance` accepts what the
        rule wants. ``logits [1 + n, V]`` f32 are those that were sampled from. Not called in a step
        without drafts, where there is nothing to decide."""
        ...


AcceptanceRule = HostRule | SimulatedAcceptance
"""Decides which drafts are accepted; without one, those that the target itself emits."""
