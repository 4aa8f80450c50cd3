"""EAGLE: a small network over the target's hidden states drafts, and what is made like it."""

from trtspec.speculative.eagle.network import EagleDraft
from trtspec.speculative.eagle.options import (
    EAGLE_ALIASES,
    EAGLE_FOREIGN,
    Eagle3DecodingConfig,
    EagleFamilyConfig,
)
from trtspec.speculative.eagle.shape import EagleConfig

__all__ = [
    "EAGLE_ALIASES",
    "EAGLE_FOREIGN",
    "Eagle3DecodingConfig",
    "EagleConfig",
    "EagleDraft",
    "EagleFamilyConfig",
]
