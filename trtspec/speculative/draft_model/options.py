"""DraftTargetDecodingConfig: options of drafting with a smaller model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

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
    `CutVocabularyConfig` and `PassDecodingConfig`. In addition:

    adapter: the folder of a low-rank adapter in PEFT's format, which is merged into the draft's
    weights when the engine is built, for requests of all adapters of the target.
    """

    method: ClassVar[str] = "draft_model"

    adapter: str | Path | None = None

    def __post_init__(self) -> None:
        if isinstance(self.adapter, Path):
            self._set("adapter", str(self.adapter))
        super().__post_init__()

    @property
    def merged_adapter(self) -> Path | None:
        return None if self.adapter is None else Path(self.adapter).expanduser()

    def of_engine(self, folder: str) -> Self:
        # The network's weights have it already.
        return replace(super().of_engine(folder), adapter=None)
