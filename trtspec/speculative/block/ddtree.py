"""DDTree (arXiv 2604.12989): of all paths through a block's guesses the most probable ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trtspec.config.tree import MAX_TOPK, MAX_TREE_ROWS, TreeShape
from trtspec.config.tree_decoding import LEFT_OUT, agree
from trtspec.errors import ConfigError
from trtspec.speculative.block.options import BlockDecodingConfig, block_config


@block_config
@dataclass(frozen=True, kw_only=True)
class DDTreeDecodingConfig(BlockDecodingConfig):
    """DDTree (arXiv 2604.12989): of all paths through the block's guesses the most probable ones
    are a tree, of max_total_draft_tokens nodes (also `tree_budget`; num_draft_tokens counts the
    root besides). topk bounds the children of a node, 64 if left out; up to as many nodes it
    changes nothing. Options: see `BlockDecodingConfig`."""

    method: ClassVar[str] = "ddtree"
    draft_method: ClassVar[str] = "dflash"
    usual_rows: ClassVar[int | None] = 16

    def _resolve_numbers(self) -> TreeShape:
        rows, nodes = self.num_draft_tokens, self.max_total_draft_tokens
        if rows != LEFT_OUT:
            agree(self, "max_total_draft_tokens", rows - 1, f"num_draft_tokens={rows} means")
            nodes = rows - 1
        if nodes == LEFT_OUT:
            raise ConfigError(
                "ddtree needs the number of nodes to verify: write num_draft_tokens (the root "
                "included) or max_total_draft_tokens (also tree_budget), for example "
                "num_draft_tokens=32"
            )
        if not 2 <= nodes + 1 <= MAX_TREE_ROWS:
            raise ConfigError(
                f"max_total_draft_tokens={nodes} must be between 1 and {MAX_TREE_ROWS - 1}"
            )
        if self.topk == LEFT_OUT:
            self._set("topk", min(nodes, MAX_TOPK))
        return super()._resolve_numbers()
