"""DFlashDrafter: a network guesses a block over the target's hidden states, in one engine call."""

from __future__ import annotations

from trtspec.config.tree_decoding import TreeDecodingConfig
from trtspec.executor.drafter import DrafterNeeds
from trtspec.speculative.eagle import EagleDrafter
from trtspec.speculative.rollout_drafter import rollout_needs


class DFlashDrafter(EagleDrafter):
    """Drafts blocks behind the target's newest states, which it is told, keeps and feeds as
    `EagleDrafter` does.

    A row of the draft cache is made of the target's state at its position alone. The token that
    comes with it is read of each request's last row only, where it is the root.
    """

    @staticmethod
    def needs_of(config: TreeDecodingConfig) -> DrafterNeeds:
        return rollout_needs(config, reads_hidden=True, lookahead=0)
