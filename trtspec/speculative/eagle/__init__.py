"""EAGLE: a small network over the target's hidden states drafts; shared by similar networks."""

from trtspec.speculative.eagle.checkpoint import read_network
from trtspec.speculative.eagle.checkpoint_kind import (
    MASK_HIDDEN,
    EagleKind,
    detect,
    refuse_relatives,
)
from trtspec.speculative.eagle.checkpoint_names import expected
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
    "MASK_HIDDEN",
    "Eagle3DecodingConfig",
    "EagleConfig",
    "EagleDraft",
    "EagleFamilyConfig",
    "EagleKind",
    "detect",
    "expected",
    "read_network",
    "refuse_relatives",
]
