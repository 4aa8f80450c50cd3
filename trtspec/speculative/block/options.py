"""What all methods share whose network guesses a block in one pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from trtspec.config.speculative_keys import (
    COMMON_ALIASES,
    COMMON_FOREIGN,
    DRAFT_ENGINE_FOREIGN,
    MODEL_ALIASES,
    OTHER_METHOD,
    TREE_ALIASES,
)
from trtspec.config.strict import Foreign, strict_config
from trtspec.config.tree import Choices, TreeShape
from trtspec.config.tree_decoding import LEFT_OUT, ChoicesDecodingConfig
from trtspec.errors import ConfigError

_ALIASES: Mapping[str, str] = {
    "tree_budget": "max_total_draft_tokens",
    "speculative_dflash_block_size": "block_size",
    "dflash_block_size": "block_size",
}
_FOREIGN: Mapping[str, Foreign] = {
    "parallel_drafting": Foreign("the method says so; leave it out", (None, True)),
    **dict.fromkeys(
        ("mask_token_id", "target_layer_ids"),
        Foreign("the draft's config.json says it; leave it out", (None,)),
    ),
    "eagle_choices": Foreign("write the paths as choices", (None,)),
    "dspark_draft_topk": Foreign(OTHER_METHOD, (None,)),
    "speculative_domino_candidate_pool_size": Foreign(OTHER_METHOD, (None,)),
}


block_config = strict_config(
    aliases={**COMMON_ALIASES, **TREE_ALIASES, **MODEL_ALIASES, **_ALIASES},
    foreign={**COMMON_FOREIGN, **DRAFT_ENGINE_FOREIGN, **_FOREIGN},
    none_means_default=True,
)


@dataclass(frozen=True, kw_only=True)
class BlockDecodingConfig(ChoicesDecodingConfig):
    """A network of blocks drafts; beside `TreeDecodingConfig`:

    max_draft_len: slots of the block that are used, at most its size less one; the network rolls
    out the block whole, as it was trained. Left out, it follows from block_size (also
    `speculative_dflash_block_size`), the rows of a block with the root. choices: the paths of a
    static tree, ranks among each slot's guesses.
    """

    choices_key: ClassVar[str] = "choices"

    choices: Choices | str | None = None
    block_size: int | None = None

    def __post_init__(self) -> None:
        if self.block_size is not None and self.block_size < 2:
            raise ConfigError(
                f"block_size={self.block_size} counts the root and the tokens to guess; it must "
                "be at least 2"
            )
        super().__post_init__()
        if self.block_size is not None and self.max_draft_len > self.block_size:
            raise ConfigError(
                f"max_draft_len={self.max_draft_len} drafts do not fit a block of block_size="
                f"{self.block_size} rows"
            )

    def _resolve_numbers(self) -> TreeShape:
        if self.max_draft_len == LEFT_OUT and self.block_size is not None:
            self._set("max_draft_len", self.block_size - 1)
        return super()._resolve_numbers()
