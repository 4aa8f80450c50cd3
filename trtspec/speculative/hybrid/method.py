"""The methods hybrid and auto."""

from __future__ import annotations

from trtspec.speculative.base import DraftMethod
from trtspec.speculative.hybrid.options import (
    AutoDecodingConfig,
    HybridDecodingConfig,
    over_drafts,
    parse_drafters,
)

HYBRID = DraftMethod(
    HybridDecodingConfig, "a hybrid", prepare=parse_drafters, over_drafts=over_drafts
)
AUTO = DraftMethod(AutoDecodingConfig, "auto", any_draft=True)
