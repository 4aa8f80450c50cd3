"""Token trees of networks whose guesses depend on the path through the block."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from trtspec.config.tree import TreeShape
from trtspec.ops.build_tree import TreeBeam
from trtspec.ops.sampling import SamplingColumns
from trtspec.speculative.tree_levels import Levels, make_levels
from trtspec.speculative.tree_rollout import columns_at, scored_children


class PathWalk(Protocol):
    """A network's predictions after each path through its slots, depth by depth."""

    def logits(self, depth: int, tokens: Tensor, lane: Tensor) -> Tensor:
        """Logits for the children of ``tokens [B, width] i64`` (the target's ids), which are before
        slot ``depth`` and are children of the nodes ``lane [B, width]`` of the previous call: ``[B,
        width, V_d] f32``."""
        ...

    def confidence(self) -> Tensor | None:
        """For each node of the previous call, the logit of the probability that its best child is
        accepted ``[B, width] f32``; None if the network does not estimate it."""
        ...


class PathTree(nn.Module):
    """A tree grown as by `TreeRollout`, from a single pass: all nodes of a depth share its slot,
    and what a network adds to it depends on their tokens.

    If the network estimates its confidence, the best child of a node gets that as its probability,
    and the others share the rest in proportion to their own probabilities.
    """

    def __init__(self, shape: TreeShape) -> None:
        super().__init__()
        self.levels: Levels = make_levels(shape)

    def forward(
        self, walk: PathWalk, roots: Tensor, token_map: Tensor | None, sampling: SamplingColumns
    ) -> tuple[Tensor, Tensor, Tensor]:
        """``roots [B] i64`` are the tokens before the first slot; otherwise as `MarginalTree`."""

        def children(depth: int, tokens: Tensor, lanes: Tensor) -> tuple[Tensor, Tensor]:
            logits = walk.logits(depth, tokens, lanes).flatten(0, 1)
            columns = columns_at(sampling, depth, tokens.shape[1])
            branching = self.levels.branching[depth]
            found, gains = scored_children(logits, columns, token_map, branching)
            sure = walk.confidence()
            return found, gains if sure is None else _believed(gains, sure.flatten())

        def expand(depth: int, beam: TreeBeam) -> tuple[Tensor, Tensor]:
            return children(depth, beam.tokens, beam.lanes)

        first = roots[:, None]
        return self.levels.grow(children(0, first, torch.zeros_like(first)), expand)


def _believed(gains: Tensor, sure: Tensor) -> Tensor:
    """Log probabilities of children ``[R, k]``, best first, adjusted so that the first has the
    probability whose logit is ``sure [R]``."""
    rest = torch.log(-torch.expm1(gains[:, :1])).clamp(min=-60)  # of what certainty leaves: some
    others = nn.functional.logsigmoid(-sure)[:, None] + (gains[:, 1:] - rest).clamp(max=0)
    found = torch.cat((nn.functional.logsigmoid(sure)[:, None], others), dim=1)
    return torch.where(gains.isfinite(), found, gains)
