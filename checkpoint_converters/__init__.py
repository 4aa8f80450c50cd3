"""Every on-disk checkpoint format -> one internal checkpoint (config and named tensors)."""

from checkpoint_converters.checkpoint import (
    Checkpoint,
    content_of,
    fingerprint,
    load_checkpoint,
    read_config,
)
from checkpoint_converters.draft import (
    DraftCheckpoint,
    DraftModel,
    EagleCheckpoint,
    MedusaCheckpoint,
    describe_draft,
    read_draft,
)
from checkpoint_converters.mtp import MtpCheckpoint, read_mtp

__all__ = [
    "Checkpoint",
    "DraftCheckpoint",
    "DraftModel",
    "EagleCheckpoint",
    "MedusaCheckpoint",
    "MtpCheckpoint",
    "content_of",
    "describe_draft",
    "fingerprint",
    "load_checkpoint",
    "read_config",
    "read_draft",
    "read_mtp",
]
