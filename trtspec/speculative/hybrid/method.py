"""The methods hybrid and auto."""

from __future__ import annotations

from trtspec.speculative.base import DraftMethod
from trtspec.speculative.hybrid.options import AutoDecodingConfig, HybridDecodingConfig

HYBRID = DraftMethod(HybridDecodingConfig, "a hybrid")
AUTO = DraftMethod(AutoDecodingConfig, "auto", any_draft=True)
