"""Every on-disk checkpoint format -> one internal checkpoint (config and named tensors)."""

from checkpoint_converters.checkpoint import Checkpoint, fingerprint, load_checkpoint, read_config

__all__ = ["Checkpoint", "fingerprint", "load_checkpoint", "read_config"]
