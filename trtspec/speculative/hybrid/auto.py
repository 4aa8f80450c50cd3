"""AutoDecodingConfig: speculation without a choice of method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from trtspec.config.decoding import DecodingConfig, DraftsAtHand
from trtspec.config.speculative_keys import COMMON_ALIASES, COMMON_FOREIGN, MODEL_ALIASES
from trtspec.config.strict import Foreign, strict_config
from trtspec.config.tree_decoding import LEFT_OUT, TreeDecodingConfig
from trtspec.errors import ConfigError
from trtspec.speculative.hybrid.options import HybridDecodingConfig
from trtspec.speculative.suffix import SuffixDecodingConfig

_FOREIGN: Mapping[str, Foreign] = dict.fromkeys(
    (
        *("topk", "eagle_topk", "speculative_eagle_topk", "num_steps", "num_draft_tokens"),
        *("speculative_num_draft_tokens", "max_total_draft_tokens", "use_dynamic_tree"),
        *("prompt_lookup_min", "prompt_lookup_max", "max_matching_ngram_size", "drafters"),
    ),
    Foreign("the method auto has no such choice; name a method, or a hybrid of several", (None,)),
)


@strict_config(
    aliases={**COMMON_ALIASES, **MODEL_ALIASES},
    foreign={**COMMON_FOREIGN, **_FOREIGN},
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
    stands_alone: ClassVar[str | None] = "it chooses the methods itself"

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

    def resolve(self, drafts: DraftsAtHand) -> DecodingConfig:
        """By the files of the draft, or with the drafts that an engine folder holds."""
        drafters: tuple[DecodingConfig, ...] = () if drafts.built is None else drafts.built.members
        if self.speculative_model is not None:
            draft = drafts.method_for(self.speculative_model)
            steps = draft.usual_steps if self.max_draft_len == LEFT_OUT else self.max_draft_len
            length = {} if steps is None else {"max_draft_len": steps}
            drafters = (draft(speculative_model=self.speculative_model, **length),)
        common: dict[str, Any] = {
            "max_model_len": self.max_model_len,
            "simulate_acceptance": self.simulate_acceptance,
            "adaptive": True,
        }
        networks = tuple(d for d in drafters if isinstance(d, TreeDecodingConfig))
        if not networks:
            return SuffixDecodingConfig(**common)
        return HybridDecodingConfig(drafters=(SuffixDecodingConfig(), *networks), **common)
