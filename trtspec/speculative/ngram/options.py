"""NGramDecodingConfig: options of prompt lookup."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from trtspec.config.decoding import DecodingConfig, at_least
from trtspec.config.speculative_keys import (
    COMMON_ALIASES,
    COMMON_FOREIGN,
    any_bool,
    is_chain_length,
)
from trtspec.config.strict import Foreign, strict_config
from trtspec.errors import ConfigError

_DEFAULT_MAX = 5
_DEFAULT_MIN = 2
_ALIASES: Mapping[str, str] = {
    "max_matching_ngram_size": "prompt_lookup_max",
    "ngram_prompt_lookup_max": "prompt_lookup_max",
    "ngram_prompt_lookup_min": "prompt_lookup_min",
}
_FOREIGN: Mapping[str, Foreign] = {
    **dict.fromkeys(
        ("model", "speculative_model", "speculative_model_dir", "draft_model"),
        Foreign("prompt lookup has no draft model", (None, "ngram", "[ngram]")),
    ),
    "is_keep_all": Foreign("it must be true or false", any_bool),  # only the newest is ever used
    "is_use_oldest": Foreign(
        "drafts continue the most recent occurrence, which predicts better; give False"
    ),
    **dict.fromkeys(
        (
            *("speculative_ngram_min_match_window_size", "speculative_ngram_max_match_window_size"),
            *("speculative_ngram_min_bfs_breadth", "speculative_ngram_max_bfs_breadth"),
            *("speculative_ngram_max_trie_depth", "speculative_ngram_branch_length"),
            *("speculative_ngram_match_type", "speculative_ngram_capacity"),
            "speculative_ngram_external_corpus_path",
        ),
        Foreign(
            "drafts continue the request's own text, in one chain; give prompt_lookup_min and "
            "prompt_lookup_max, or the method suffix for a tree and for earlier answers",
            (None,),
        ),
    ),
    "is_public_pool": Foreign("only the request's own text is searched; give False"),
    **dict.fromkeys(
        ("topk", "eagle_topk", "speculative_eagle_topk"),
        Foreign("prompt lookup drafts one chain; give 1", (None, 1)),
    ),
    **dict.fromkeys(
        ("num_draft_tokens", "speculative_num_draft_tokens", "num_steps"),
        Foreign("give `num_speculative_tokens`", (None,)),
    ),
    "max_total_draft_tokens": Foreign(
        "prompt lookup drafts one chain of max_draft_len tokens",
        is_chain_length,
    ),
}


@strict_config(aliases={**COMMON_ALIASES, **_ALIASES}, foreign={**COMMON_FOREIGN, **_FOREIGN})
@dataclass(frozen=True, kw_only=True)
class NGramDecodingConfig(DecodingConfig):
    """Prompt lookup: drafts continue the most recent earlier occurrence, in the request's own text,
    of its last n tokens; the longest n with an occurrence wins.

    prompt_lookup_max: longest n (default 5, or prompt_lookup_min if that is more); TensorRT-LLM's
    `max_matching_ngram_size`. prompt_lookup_min: shortest n (default 2, or prompt_lookup_max if
    that is less; vLLM's default is prompt_lookup_max).
    """

    method: ClassVar[str] = "ngram"
    usual_steps: ClassVar[int | None] = 5

    prompt_lookup_min: int | None = None
    prompt_lookup_max: int | None = None

    def __post_init__(self) -> None:
        self._check_common()
        for name in ("prompt_lookup_min", "prompt_lookup_max"):
            value = getattr(self, name)
            if value is not None:
                at_least(name, value, 1)
        if self.min_ngram > self.max_ngram:
            raise ConfigError(
                f"prompt_lookup_min={self.prompt_lookup_min} must be <= "
                f"prompt_lookup_max={self.prompt_lookup_max}"
            )

    @property
    def min_ngram(self) -> int:
        if self.prompt_lookup_min is not None:
            return self.prompt_lookup_min
        return min(_DEFAULT_MIN, self.max_ngram)

    @property
    def max_ngram(self) -> int:
        if self.prompt_lookup_max is not None:
            return self.prompt_lookup_max
        return max(_DEFAULT_MAX, self.prompt_lookup_min or 0)
