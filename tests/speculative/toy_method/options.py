"""ToyDecodingConfig: the options of the toy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trtspec.config.speculative_keys import (
    COMMON_ALIASES,
    COMMON_FOREIGN,
    DRAFT_ENGINE_FOREIGN,
    MODEL_ALIASES,
)
from trtspec.config.strict import strict_config
from trtspec.config.tree_decoding import TreeDecodingConfig
from trtspec.errors import ConfigError


@strict_config(
    aliases={**COMMON_ALIASES, **MODEL_ALIASES, "patience": "toy_patience"},
    foreign={**COMMON_FOREIGN, **DRAFT_ENGINE_FOREIGN},
    none_means_default=True,
)
@dataclass(frozen=True, kw_only=True)
class ToyDecodingConfig(TreeDecodingConfig):
    """Chains alone. toy_patience: drafts of a request that were all wrong before it is left alone;
    0: it never is."""

    method: ClassVar[str] = "toy"

    toy_patience: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.topk != 1:
            raise ConfigError(f"topk={self.topk}: toys draft chains; leave it out")
        if self.toy_patience < 0:
            raise ConfigError(f"toy_patience={self.toy_patience} must be 0 or more")
