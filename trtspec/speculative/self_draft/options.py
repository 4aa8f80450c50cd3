"""SelfDecodingConfig: options of drafting with a copy of the target in fewer bits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
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
from trtspec.config.tree_decoding import OWN_MODULES
from trtspec.speculative.draft_model import DraftTargetDecodingConfig


@strict_config(
    aliases={**COMMON_ALIASES, **TREE_ALIASES, **MODEL_ALIASES, **PASS_ALIASES},
    foreign={**COMMON_FOREIGN, **DRAFT_ENGINE_FOREIGN},
    none_means_default=True,
)
@dataclass(frozen=True, kw_only=True)
class SelfDecodingConfig(PassDecodingConfig):
    """A copy of the target with weights in fewer bits drafts (ML-SpecQD, arXiv 2503.13565), with a
    K/V cache of its own; no other checkpoint is needed. Trees, vocabulary, p_min: see
    `TreeDecodingConfig`, `CutVocabularyConfig` and `PassDecodingConfig`.

    speculative_model: the target itself; leave it out. weight_dtype, weight_group_size,
    head_weight_dtype, activation_dtype: those of the copy, as `BuildConfig` has them for the
    target; auto: the format with the fewest bits.
    """

    method: ClassVar[str] = "self"
    draft_method: ClassVar[str] = DraftTargetDecodingConfig.method

    speculative_model: str | Path = OWN_MODULES
    max_draft_len: int = 5
