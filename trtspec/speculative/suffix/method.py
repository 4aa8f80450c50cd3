"""The method suffix."""

from __future__ import annotations

from trtspec.speculative.base import DraftMethod
from trtspec.speculative.suffix.drafter import SuffixDrafter
from trtspec.speculative.suffix.options import SuffixDecodingConfig

SUFFIX = DraftMethod(
    SuffixDecodingConfig,
    "suffix decoding",
    SuffixDrafter.needs_of,
    lambda config, draft: SuffixDrafter(config),
    spellings=("suffixdecoding",),
    usual=("suffix:8",),
    forgetful={"suffix_decoding_max_cached_requests": 0},
)
