"""BlockDrafter: a `HiddenStateDrafter` whose rows read no token except the root."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from trtspec.config.tree_decoding import TreeDecodingConfig
from trtspec.executor.engines.pass_rollout import StopRule
from trtspec.executor.step.device_rollout import DeviceRollout
from trtspec.executor.step.drafter import DrafterNeeds
from trtspec.executor.step.request import Request
from trtspec.speculative.hidden_state_drafter import HiddenStateDrafter
from trtspec.speculative.rollout_drafter import rollout_needs


def block_needs(config: TreeDecodingConfig) -> DrafterNeeds:
    """The needs for a cache whose rows are computed from the target's hidden state at their
    position alone. The token that comes with a row is only read for each request's last row, where
    it is the root."""
    return rollout_needs(config, reads_hidden=True, lookahead=0)


class BlockDrafter(HiddenStateDrafter):
    """Drafts blocks after the target's newest hidden states, and drops nodes whose probability,
    given the node before, is below ``p_min``."""

    needs_of = staticmethod(block_needs)

    def device_rollout(self) -> DeviceRollout | None:
        """See `Drafter`. None also if unlikely nodes are dropped, which happens on the host."""
        return super().device_rollout() if self._p_min <= 0 else None

    def _roll_out(
        self, requests: Sequence[Request], sampling: Sequence[Tensor], rule: StopRule
    ) -> tuple[Tensor, Tensor, Tensor]:
        tokens, parents, scores = super()._roll_out(requests, sampling, rule)
        if self._p_min > 0:
            scores = without_unlikely(parents, scores, self._p_min)
        return tokens, parents, scores


def without_unlikely(parents: Tensor, scores: Tensor, least: float) -> Tensor:
    """Scores ``[B, N-1]``, with -inf for nodes whose own probability is below ``least``, and for
    their descendants; ``parents``: see `TreeRollout`."""
    is_child, place = parents >= 0, parents.clamp(min=0).long()
    above = torch.where(is_child, scores.gather(1, place), 0)
    out = scores - above < math.log(least)
    while True:  # as often as the deepest one is behind the first that was left out
        behind = out | (is_child & out.gather(1, place))
        if torch.equal(behind, out):
            return scores.masked_fill(out, -math.inf)
        out = behind
