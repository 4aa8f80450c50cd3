"""JetSpec (arXiv 2606.18394): the most probable paths through the guesses of a causal head.

Each slot of a causal head only sees the slots before it, like tokens in a text, so the guesses of
neighbouring slots are more consistent along a path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trtspec.config.draft import DraftConfig
from trtspec.errors import ConfigError
from trtspec.speculative.block.options import BestFirstDecodingConfig, block_config
from trtspec.speculative.block.shape import BlockConfig

_ALIASES = {"budget": "num_draft_tokens", "tree_depth": "max_draft_len", "tree_width": "topk"}


@block_config(_ALIASES)
@dataclass(frozen=True, kw_only=True)
class JetSpecDecodingConfig(BestFirstDecodingConfig):
    """JetSpec: the most probable paths through the guesses of a DFlash network whose layers are all
    causal (`dflash_config.causal_head`). JetSpec's `budget` counts the root; its `tree_depth` and
    `tree_width` are max_draft_len and topk. JetSpec's own code verifies either all children of a
    node or none; the tree here has the most probable nodes individually, so the same number of rows
    covers more probability. Options: see `BestFirstDecodingConfig`."""

    method: ClassVar[str] = "jetspec"
    draft_method: ClassVar[str] = "dflash"
    usual_rows: ClassVar[int | None] = 128

    def check_network(self, built: DraftConfig) -> None:
        assert isinstance(built, BlockConfig), "this method runs these"
        blind = [i for i, causal in enumerate(built.causal_layers) if not causal]
        if blind:
            raise ConfigError(
                f"jetspec asks for a causal head, but layer {blind[0]} of the draft sees its whole "
                "block; write method 'ddtree' for the same tree of such a draft's guesses"
            )
