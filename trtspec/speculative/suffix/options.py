"""SuffixDecodingConfig: drafts from suffix trees of the request's text and of earlier responses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from trtspec.config.decoding import DecodingConfig
from trtspec.config.speculative_keys import COMMON_ALIASES, COMMON_FOREIGN
from trtspec.config.strict import Foreign, strict_config
from trtspec.config.tree_decoding import LEFT_OUT
from trtspec.errors import ConfigError

MAX_TREE_DEPTH = 1024
UNLIMITED = -1

_ALIASES: Mapping[str, str] = {
    "suffix_speculative_tokens": "max_draft_len",
    "suffix_cache_max_depth": "suffix_decoding_max_tree_depth",
    "suffix_cache_max_requests": "suffix_decoding_max_cached_requests",
    "suffix_max_spec_factor": "suffix_decoding_max_spec_factor",
    "suffix_max_spec_offset": "suffix_decoding_max_spec_offset",
    "suffix_min_token_prob": "suffix_decoding_min_token_prob",
}
_FOREIGN: Mapping[str, Foreign] = {
    **dict.fromkeys(
        ("model", "speculative_model", "speculative_model_dir", "draft_model"),
        Foreign("suffix decoding has no draft model", (None, "suffix")),
    ),
    "enable_suffix_decoding": Foreign("the method says so; leave it out", (None, True)),
    **dict.fromkeys(
        ("topk", "eagle_topk", "speculative_eagle_topk", "use_dynamic_tree"),
        Foreign("the text decides the shape of a draft; give suffix_decoding_tree", (None,)),
    ),
    **dict.fromkeys(
        ("num_draft_tokens", "speculative_num_draft_tokens", "num_steps", "max_total_draft_tokens"),
        Foreign("give `num_speculative_tokens`", (None,)),
    ),
    **dict.fromkeys(
        ("prompt_lookup_min", "prompt_lookup_max", "max_matching_ngram_size"),
        Foreign('it belongs to {"method": "ngram"}', (None,)),
    ),
}


@strict_config(
    aliases={**COMMON_ALIASES, **_ALIASES},
    foreign={**COMMON_FOREIGN, **_FOREIGN},
    none_means_default=True,
)
@dataclass(frozen=True, kw_only=True)
class SuffixDecodingConfig(DecodingConfig):
    """Suffix decoding (arXiv:2411.04975): a draft continues the longest matching suffixes of the
    text as they continued before, weighted by frequency; it is as long as the match deserves, or
    empty.

    max_draft_len: most draft tokens per step, counting all nodes (also `num_speculative_tokens`);
    by default the depth of the tree. suffix_decoding_max_tree_depth: longest string that is
    counted, match and draft together, 2 to 1024. suffix_decoding_max_cached_requests: responses
    kept for later requests, evicted oldest first; 0 keeps none, -1 sets no limit.
    suffix_decoding_max_cached_tokens: tokens of all kept responses, which bounds their memory
    whatever their length: about 80 bytes per token, never more than 250, plus less than a kilobyte
    per response. suffix_decoding_max_spec_factor, suffix_decoding_max_spec_offset: a match of m
    tokens is continued by at most factor * m + offset. suffix_decoding_min_token_prob: tokens whose
    path probability is lower are not drafted. suffix_decoding_tree: draft the most likely nodes of
    a tree; False drafts one path, as vLLM does.
    """

    method: ClassVar[str] = "suffix"

    max_draft_len: int = LEFT_OUT
    suffix_decoding_max_tree_depth: int = 24
    suffix_decoding_max_cached_requests: int = 10000
    suffix_decoding_max_cached_tokens: int = 1 << 22
    suffix_decoding_max_spec_factor: float = 1.0
    suffix_decoding_max_spec_offset: float = 0.0
    suffix_decoding_min_token_prob: float = 0.1
    suffix_decoding_tree: bool = True

    def __post_init__(self) -> None:
        depth = self.suffix_decoding_max_tree_depth
        if not 2 <= depth <= MAX_TREE_DEPTH:
            raise ConfigError(
                f"suffix_decoding_max_tree_depth={depth} must be between 2 (a token matched and a "
                f"token drafted) and {MAX_TREE_DEPTH}"
            )
        if self.max_draft_len == LEFT_OUT:
            self._set("max_draft_len", depth)
        self._check_common()
        self._check_low("suffix_decoding_max_cached_requests", UNLIMITED)
        self._check_low("suffix_decoding_max_cached_tokens", 0)
        self._check_low("suffix_decoding_max_spec_factor", 0)
        self._check_low("suffix_decoding_max_spec_offset", -math.inf)
        if not 0 <= self.suffix_decoding_min_token_prob <= 1:
            raise ConfigError(
                f"suffix_decoding_min_token_prob={self.suffix_decoding_min_token_prob} must be in "
                "[0, 1]"
            )

    def _check_low(self, name: str, low: float) -> None:
        value = getattr(self, name)
        if not (low <= value and math.isfinite(value)):
            wanted = "a number" if low == -math.inf else f"{low} or more"
            raise ConfigError(f"{name}={value} must be {wanted}")
