"""Options that all methods with block networks share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, TypeVar

from trtspec.config.cut_decoding import VOCABULARY_ALIASES, CutVocabularyConfig
from trtspec.config.speculative_keys import (
    COMMON_ALIASES,
    COMMON_FOREIGN,
    DRAFT_ENGINE_FOREIGN,
    MODEL_ALIASES,
    OTHER_METHOD,
    TREE_ALIASES,
)
from trtspec.config.strict import Foreign, strict_config
from trtspec.config.tree import MAX_TOPK, MAX_TREE_ROWS, Choices, TreeShape
from trtspec.config.tree_decoding import LEFT_OUT, ChoicesDecodingConfig, agree
from trtspec.errors import ConfigError

T = TypeVar("T")

_ALIASES: Mapping[str, str] = {
    **VOCABULARY_ALIASES,
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


def block_config(
    more: Mapping[str, str] = MappingProxyType({}),
    foreign: Mapping[str, Foreign] = MappingProxyType({}),
) -> Callable[[type[T]], type[T]]:
    """The class decorator of these configs, with ``more`` aliases and ``foreign`` keys of one
    method."""
    return strict_config(
        aliases={**COMMON_ALIASES, **TREE_ALIASES, **MODEL_ALIASES, **_ALIASES, **more},
        foreign={**COMMON_FOREIGN, **DRAFT_ENGINE_FOREIGN, **_FOREIGN, **foreign},
        none_means_default=True,
    )


@dataclass(frozen=True, kw_only=True)
class BlockDecodingConfig(ChoicesDecodingConfig, CutVocabularyConfig):
    """A block network drafts; in addition to `TreeDecodingConfig` and `CutVocabularyConfig`:

    max_draft_len: slots of the block that are used, at most its size less one; the network always
    rolls out the whole block, as it was trained. By default it follows from block_size (also
    `speculative_dflash_block_size`), the rows of a block including the root. choices: the paths of
    a static tree, as ranks among each slot's guesses.
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


@dataclass(frozen=True, kw_only=True)
class BlockRowsDecodingConfig(BlockDecodingConfig):
    """SGLang's `speculative_num_draft_tokens` alone is the number of rows, a block's size. Options:
    see `BlockDecodingConfig`."""

    def _resolve_numbers(self) -> TreeShape:
        rows = self.num_draft_tokens
        if (self.max_draft_len, self.block_size) == (LEFT_OUT, None) and rows > 1:
            self._set("max_draft_len", rows - 1)
        return super()._resolve_numbers()


@dataclass(frozen=True, kw_only=True)
class BestFirstDecodingConfig(BlockDecodingConfig):
    """The most probable paths through the block's guesses form a tree of max_total_draft_tokens
    nodes (also `tree_budget`; num_draft_tokens also counts the root). topk limits the children of a
    node, by default to 64; with fewer nodes than that it has no effect. Further options: see
    `BlockDecodingConfig`."""

    usual_rows: ClassVar[int | None] = 16

    def _resolve_numbers(self) -> TreeShape:
        rows, nodes = self.num_draft_tokens, self.max_total_draft_tokens
        if rows != LEFT_OUT:
            agree(self, "max_total_draft_tokens", rows - 1, f"num_draft_tokens={rows} means")
            nodes = rows - 1
        if nodes == LEFT_OUT:
            raise ConfigError(
                f"{self.method} needs the number of nodes to verify: write num_draft_tokens (the "
                "root included) or max_total_draft_tokens (also tree_budget), for example "
                "num_draft_tokens=32"
            )
        if not 2 <= nodes + 1 <= MAX_TREE_ROWS:
            raise ConfigError(
                f"max_total_draft_tokens={nodes} must be between 1 and {MAX_TREE_ROWS - 1}"
            )
        if self.topk == LEFT_OUT:
            self._set("topk", min(nodes, MAX_TOPK))
        return super()._resolve_numbers()
