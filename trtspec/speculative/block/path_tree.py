"""Token trees of networks whose guesses depend on the path through the block."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from trtspec.config.tree import TreeShape
from trtspec.ops.sampling import SamplingColumns
from trtspec.speculative.tree_levels import Levels, make_levels
from trtspec.speculative.tree_rollout import columns_at, scored_children


class PathWalk(Protocol):
    """What a network says of the tokens behind each path through its slots, depth by depth."""

    def logits(self, depth: int, tokens: Tensor, lane: Tensor) -> Tensor:
        """Of the children of ``tokens [B, width] i64`` (the target's ids), which stand before slot
        ``depth`` and are children of the nodes ``lane [B, width]`` of those last asked for:
        ``[B, width, V_d] f32``."""
        ...

    def confidence(self) -> Tensor | None:
        """How sure it is that the best child of each node last asked for is accepted: the logit
        of the probability ``[B, width] f32``; None of a network that does not tell."""
        ...


class PathTree(nn.Module):
    """A tree as `TreeRollout` grows it, of one pass: a depth's slot is the same for all its nodes,
    and what a network adds to it depends on their tokens.

    Where the network says how sure it is, the best child of a node scores that, and the others
    share what is left in proportion to their own probabilities.
    """

    def __init__(self, shape: TreeShape) -> None:
        super().__init__()
        self.levels: Levels = make_levels(shape)

    def forward(
        self, walk: PathWalk, roots: Tensor, token_map: Tensor | None, sampling: SamplingColumns
    ) -> tuple[Tensor, Tensor, Tensor]:
        """``roots [B] i64`` are the tokens before the first slot; otherwise as `MarginalTree`."""

        def expand(depth: int, tokens: Tensor, lane: Tensor) -> tuple[Tensor, Tensor]:
            logits = walk.logits(depth, tokens, lane).flatten(0, 1)
            columns = columns_at(sampling, depth, tokens.shape[1])
            branching = self.levels.branching[depth]
            children, gains = scored_children(logits, columns, token_map, branching)
            sure = walk.confidence()
            return children, gains if sure is None else _believed(gains, sure.flatten())

        first = roots[:, None]
        return self.levels.grow(*expand(0, first, torch.zeros_like(first)), expand)


def _believed(gains: Tensor, sure: Tensor) -> Tensor:
    """Log probabilities of children ``[R, k]``, the best first, made to fit what ``sure [R]`` is
    the logit of: the probability of the first."""
    rest = torch.log(-torch.expm1(gains[:, :1])).clamp(min=-60)  # of what certainty leaves: some
    others = nn.functional.logsigmoid(-sure)[:, None] + (gains[:, 1:] - rest).clamp(max=0)
    found = torch.cat((nn.functional.logsigmoid(sure)[:, None], others), dim=1)
    return torch.where(gains.isfinite(), found, gains)
