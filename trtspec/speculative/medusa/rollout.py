"""The rollout of a network that guesses every depth at once, without K/V."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn

from trtspec.config.tree import TreeShape
from trtspec.ops.sampling import SamplingColumns
from trtspec.speculative.marginals import MarginalTree


class MarginalNetwork(Protocol):
    """A network that scores the tokens of every depth from one state of the target."""

    @property
    def token_map(self) -> Tensor | None:
        """The target's id of each column of the logits ``[V_d] i64``; None: the column itself."""
        ...

    def marginals(self, hidden: Tensor) -> Tensor:
        """States ``[B, H]`` -> logits ``[B, D, V_d] f32``, those of depth 1 first."""
        ...


class HeadsRollout(nn.Module):
    """A `MarginalTree` of the network's guesses."""

    model: MarginalNetwork

    def __init__(self, model: MarginalNetwork, shape: TreeShape) -> None:
        """``model`` is also a module, with a marginal for each step of ``shape``."""
        super().__init__()
        self.model = model
        self.levels = MarginalTree(shape)

    def forward(self, hidden: Tensor, sampling: SamplingColumns) -> tuple[Tensor, Tensor, Tensor]:
        """``hidden [B, H]`` is the target's hidden state of the row before each request's root, the
        newest there is. For ``sampling`` and the results see `MarginalTree`."""
        tree: tuple[Tensor, Tensor, Tensor] = self.levels(
            self.model.marginals(hidden), self.model.token_map, sampling
        )
        return tree
