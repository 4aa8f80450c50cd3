"""What drafts blocks: a `StateDrafter` whose rows read no token but the root."""

from __future__ import annotations

from trtspec.config.tree_decoding import TreeDecodingConfig
from trtspec.executor.drafter import DrafterNeeds
from trtspec.speculative.draft_runtime import DraftRuntime
from trtspec.speculative.rollout_drafter import rollout_needs
from trtspec.speculative.state_drafter import StateDrafter


def block_needs(config: TreeDecodingConfig) -> DrafterNeeds:
    """Of a cache whose rows are made of the target's state at their position alone. The token that
    comes with one is read of each request's last row only, where it is the root."""
    return rollout_needs(config, reads_hidden=True, lookahead=0)


def block_drafter(config: TreeDecodingConfig, draft: DraftRuntime) -> StateDrafter:
    """Drafts blocks behind the target's newest states."""
    return StateDrafter(*draft.cached, block_needs(config))
