"""Buffers and tensors of a short causal convolution, as data."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.config.cache_buffer import CacheBuffer
from trtspec.config.norm_spec import Shape


def conv_buffers(channels: int, width: int) -> tuple[CacheBuffer, CacheBuffer]:
    """The newest inputs of a request, and those of draft rows."""
    tail = CacheBuffer("conv_tail", width - 1, channels, kind="slot")
    return tail, CacheBuffer("conv_input", 1, channels, kind="step")


def conv_tensors(name: str, channels: int, width: int, bias: bool) -> Iterator[tuple[str, Shape]]:
    """Shapes by name, as in checkpoints."""
    yield f"{name}.weight", (channels, 1, width)
    if bias:
        yield f"{name}.bias", (channels,)
