"""AutoDecodingConfig: speculation without a choice of method."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from trtspec.config.decoding import DecodingConfig
from trtspec.config.hybrid import HybridDecodingConfig
from trtspec.config.medusa_decoding import MedusaDecodingConfig
from trtspec.config.speculative_keys import (
    AUTO_FOREIGN,
    COMMON_ALIASES,
    COMMON_FOREIGN,
    MODEL_ALIASES,
)
from trtspec.config.strict import strict_config
from trtspec.config.suffix_decoding import SuffixDecodingConfig
from trtspec.config.tree_decoding import LEFT_OUT, TreeDecodingConfig
from trtspec.errors import ConfigError

DEFAULT_STEPS = 5


@strict_config(
    aliases={**COMMON_ALIASES, **MODEL_ALIASES},
    foreign={**COMMON_FOREIGN, **AUTO_FOREIGN},
    none_means_default=True,
)
@dataclass(frozen=True, kw_only=True)
class AutoDecodingConfig(DecodingConfig):
    """What needs no thought: suffix decoding, and the draft if there is one, as a hybrid with
    `adaptive=True`, so that what does not pay is left out in every step.

    speculative_model: directory or id of a draft checkpoint of any kind, which its files tell (also
    `model`, `draft_model`). Left out: none, or those that an engine folder holds. max_draft_len: D,
    steps of that draft (also `num_speculative_tokens`); 5 if left out, or what its kind says.
    """

    method: ClassVar[str] = "auto"

    speculative_model: str | Path | None = None
    max_draft_len: int = LEFT_OUT
    adaptive: bool = True

    def __post_init__(self) -> None:
        if not self.adaptive:
            raise ConfigError(
                "adaptive=False: the method auto is adaptive; name a method to have it fixed"
            )
        if self.max_draft_len != LEFT_OUT:
            if self.speculative_model is None:
                raise ConfigError(
                    f"max_draft_len={self.max_draft_len} is that of a draft, but no "
                    "speculative_model is given; leave it out"
                )
            self._check_common()

    def resolved(self, draft: type[DecodingConfig] | None) -> DecodingConfig:
        """What is meant, where the draft that is given is one for the method `draft`."""
        if draft is None:
            return self.beside(())
        steps = self.max_draft_len
        options: dict[str, Any] = {"speculative_model": self.speculative_model}
        if steps != LEFT_OUT or not issubclass(draft, MedusaDecodingConfig):
            options["max_draft_len"] = DEFAULT_STEPS if steps == LEFT_OUT else steps
        return self.beside((draft(**options),))

    def beside(self, drafters: tuple[DecodingConfig, ...]) -> DecodingConfig:
        """What is meant, where these draft as well."""
        common: dict[str, Any] = {
            "max_model_len": self.max_model_len,
            "simulate_acceptance": self.simulate_acceptance,
            "adaptive": True,
        }
        networks = tuple(d for d in drafters if isinstance(d, TreeDecodingConfig))
        if not networks:
            return SuffixDecodingConfig(**common)
        return HybridDecodingConfig(drafters=(SuffixDecodingConfig(), *networks), **common)
