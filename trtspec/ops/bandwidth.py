"""How fast the processor reads memory."""

from __future__ import annotations

import torch

from trtspec.errors import ConfigError
from trtspec.ops import native  # noqa: F401  registers the op

MIN_BYTES = 1 << 20


def read_bandwidth(num_bytes: int) -> float:
    """Bytes per second at which all threads together read memory: ``num_bytes``, which should be
    many times the caches, several times over. The 10th percentile of the time of pieces counts, as
    other load only ever adds time.

    Raises:
        ConfigError: fewer than 1 MiB.
    """
    if num_bytes < MIN_BYTES:
        raise ConfigError(f"num_bytes={num_bytes} must be at least {MIN_BYTES}, a measurable size")
    rate: float = torch.ops.trtspec._read_bandwidth(num_bytes)
    return rate
