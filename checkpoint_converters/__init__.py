"""Every on-disk checkpoint format -> one internal checkpoint (config and named tensors)."""

from checkpoint_converters.auxiliary_weights import AuxiliaryWeights
from checkpoint_converters.checkpoint import (
    Checkpoint,
    content_of,
    fingerprint,
    load_checkpoint,
    read_config,
    reading_notes,
)
from checkpoint_converters.draft_checkpoint import DraftCheckpoint, DraftFolder
from checkpoint_converters.peft import PeftAdapter, read_adapter
from checkpoint_converters.quantised_copy import QuantisedLayer, require_copyable, write_quantised

__all__ = [
    "AuxiliaryWeights",
    "Checkpoint",
    "DraftCheckpoint",
    "DraftFolder",
    "PeftAdapter",
    "QuantisedLayer",
    "content_of",
    "fingerprint",
    "load_checkpoint",
    "read_adapter",
    "read_config",
    "reading_notes",
    "require_copyable",
    "write_quantised",
]
