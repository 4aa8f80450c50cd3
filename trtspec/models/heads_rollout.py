"""The rollout of a network whose guesses at every depth are made at once, without K/V."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from trtspec.config.tree import TreeShape
from trtspec.models.tree_levels import Levels, make_levels
from trtspec.ops.sampling import SamplingColumns, draft_candidates


class MarginalNetwork(Protocol):
    """A network that scores the tokens of every depth from one state of the target."""

    @property
    def token_map(self) -> Tensor | None:
        """The target's id of each column of the logits ``[V_d] i64``; None: the column itself."""
        ...

    def marginals(self, hidden: Tensor) -> list[Tensor]:
        """States ``[B, H]`` -> logits ``[B, V_d] f32``, one for each depth from 1 on."""
        ...


class HeadsRollout(nn.Module):
    """Assemble a token tree from the marginals of its depths.

    What may follow a node does not depend on the node: its children are the best candidates of the
    next depth, the same for all nodes of a depth. Otherwise the tree is that of `TreeRollout`, of
    the same shapes: a static one has the nodes that its choices name; a dynamic one the N - 1 best
    of a beam over the product of each depth's k best. A score is the cumulative log-softmax of the
    noise-perturbed marginals, so a child never scores above its parent.
    """

    model: MarginalNetwork

    def __init__(self, model: MarginalNetwork, shape: TreeShape) -> None:
        """``model`` is a module as well, with a marginal for each step of ``shape``."""
        super().__init__()
        self.model = model
        self.levels: Levels = make_levels(shape)

    def forward(self, hidden: Tensor, sampling: SamplingColumns) -> tuple[Tensor, Tensor, Tensor]:
        """``hidden [B, H]`` is the target's state of the row before each request's root, the newest
        there is; ``sampling`` holds columns ``[B]``, with ``output_index`` that of the first
        drafted token.

        Returns ``tokens [B, N-1] i64``, ``parents [B, N-1] i32`` (-1 = child of the root, always
        smaller than the node's own index) and ``scores [B, N-1] f32``; a score of -inf marks a node
        that the filters exclude.
        """
        marginals = self.model.marginals(hidden)
        tokens, scores = self._candidates(marginals[0], sampling, 0)
        pool_tokens, pool_scores = [tokens], [scores]
        pool_parents = [torch.full_like(tokens, -1)]
        pooled = 0
        for depth, width in enumerate(self.levels.widths, 1):
            best = self.levels.beam(depth - 1, scores)
            beam_scores = scores.gather(1, best)
            children, gains = self._candidates(marginals[depth], sampling, depth)
            count = children.shape[1]
            pool_parents.append((pooled + best).repeat_interleave(count, dim=1))
            pooled += tokens.shape[1]
            tokens = children.repeat(1, width)
            scores = (beam_scores[:, :, None] + gains[:, None, :]).reshape(-1, width * count)
            pool_tokens.append(tokens)
            pool_scores.append(scores)
        return self.levels.cut(pool_tokens, pool_parents, pool_scores)

    def _candidates(
        self, logits: Tensor, sampling: SamplingColumns, depth: int
    ) -> tuple[Tensor, Tensor]:
        """The best tokens of a depth (from 0) and the log probability of each, ``[B, C]``."""
        columns = sampling._replace(output_index=sampling.output_index + depth)
        count = self.levels.branching[depth]
        ids, gains = draft_candidates(logits, *columns, self.model.token_map, count)
        # Rounding lets a certain child's exceed 0 by 1e-16; it would then outrank its parent.
        return ids, gains.clamp(max=0)
