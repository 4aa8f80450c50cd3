"""AssistantDecodingConfig: options of drafting with an assistant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trtspec.config.speculative_keys import (
    COMMON_ALIASES,
    COMMON_FOREIGN,
    DRAFT_ENGINE_FOREIGN,
    MODEL_ALIASES,
    TREE_ALIASES,
)
from trtspec.config.strict import strict_config
from trtspec.config.tree_decoding import TreeDecodingConfig


@strict_config(
    aliases={**COMMON_ALIASES, **TREE_ALIASES, **MODEL_ALIASES},
    foreign={**COMMON_FOREIGN, **DRAFT_ENGINE_FOREIGN},
    none_means_default=True,
)
@dataclass(frozen=True, kw_only=True)
class AssistantDecodingConfig(TreeDecodingConfig):
    """A small network that attends to the target's own K/V and keeps none drafts, like Gemma 4's
    assistants; options: see `TreeDecodingConfig`."""

    method: ClassVar[str] = "assistant"
