"""MtpDecodingConfig: the target's own multi-token prediction module drafts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from trtspec.config.speculative_keys import (
    COMMON_ALIASES,
    COMMON_FOREIGN,
    DRAFT_ENGINE_FOREIGN,
    EAGLE_ALIASES,
    MODEL_ALIASES,
    MTP_FOREIGN,
    TREE_ALIASES,
)
from trtspec.config.strict import strict_config
from trtspec.config.tree import TreeShape
from trtspec.config.tree_decoding import LEFT_OUT, EagleFamilyConfig
from trtspec.errors import ConfigError

OWN_MODULES = "[target]"
"""The name by which a config means the modules in the target's own checkpoint."""


@strict_config(
    aliases={**COMMON_ALIASES, **TREE_ALIASES, **MODEL_ALIASES, **EAGLE_ALIASES},
    foreign={**COMMON_FOREIGN, **DRAFT_ENGINE_FOREIGN, **MTP_FOREIGN},
    none_means_default=True,
)
@dataclass(frozen=True, kw_only=True)
class MtpDecodingConfig(EagleFamilyConfig):
    """Multi-token prediction: a module that was trained with the target drafts, at every depth the
    first one of the checkpoint, fed its own output (*MTP-Eagle*). Trees and the token map are those
    of EAGLE, see `EagleFamilyConfig`.

    speculative_model: the checkpoint with the modules; left out, the target's own.
    num_nextn_predict_layers: TensorRT-LLM's; stands for ``max_draft_len`` where neither that nor
    eagle_choices are given. Beside them it is a number of modules, and by vLLM's rule the depth is
    at most that or a multiple of it.
    """

    method: ClassVar[str] = "mtp"

    speculative_model: str | Path = OWN_MODULES
    num_nextn_predict_layers: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        modules, depth = self.num_nextn_predict_layers, self.max_draft_len
        if modules is not None and depth > modules and depth % modules:
            raise ConfigError(
                f"max_draft_len={depth} is more than num_nextn_predict_layers={modules} and no "
                f"multiple of it; give a multiple of {modules}, at most {modules}, or leave "
                "num_nextn_predict_layers out"
            )

    def _resolve_tree(self) -> TreeShape:
        modules = self.num_nextn_predict_layers
        if modules is not None and modules < 1:
            raise ConfigError(f"num_nextn_predict_layers={modules} must be at least 1")
        if modules is not None and self.max_draft_len == LEFT_OUT and self.eagle_choices is None:
            self._set("max_draft_len", modules)
        return super()._resolve_tree()
