"""Head: the interface of a network in training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from torch import Tensor, nn

from trtspec.train.windows import Window


class Head(Protocol):
    """module: the network; its parameters that require gradients are trained."""

    module: nn.Module

    def loss(self, window: Window, depth: int) -> tuple[Tensor, Sequence[float]]:
        """The loss (nats, see `TrainingRecipe.loss`) of drafts of at most ``depth`` tokens, and how
        often the head's choice is the target's at each unrolled position."""
        ...

    def export(self, folder: Path) -> None:
        """Write the checkpoint into an existing folder."""
        ...
