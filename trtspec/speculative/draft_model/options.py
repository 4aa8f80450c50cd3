"""DraftTargetDecodingConfig: options of drafting with a smaller model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trtspec.config.pass_decoding import PASS_ALIASES, PassDecodingConfig
from trtspec.config.speculative_keys import (
    COMMON_ALIASES,
    COMMON_FOREIGN,
    DRAFT_ENGINE_FOREIGN,
    MODEL_ALIASES,
    TREE_ALIASES,
)
from trtspec.config.strict import strict_config


@strict_config(
    aliases={**COMMON_ALIASES, **TREE_ALIASES, **MODEL_ALIASES, **PASS_ALIASES},
    foreign={**COMMON_FOREIGN, **DRAFT_ENGINE_FOREIGN},
    none_means_default=True,
)
@dataclass(frozen=True, kw_only=True)
class DraftTargetDecodingConfig(PassDecodingConfig):
    """A smaller model of the same vocabulary drafts; options: see `TreeDecodingConfig`,
    `CutVocabularyConfig` and `PassDecodingConfig`."""

    method: ClassVar[str] = "draft_model"
