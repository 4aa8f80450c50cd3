"""CacheBuffer: one of the named buffers that a layer's cache is made of, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from trtspec.config.kv import CacheDtype


class CacheBuffer(NamedTuple):
    """What a layer keeps of every token, in blocks: ``size`` elements of each of ``heads``. name:
    within its layer. dtype: None: that of the network."""

    name: str
    heads: int
    size: int
    dtype: str | None = None


def cache_buffers(
    rows: Mapping[str, tuple[int, int]], dtype: CacheDtype | None
) -> tuple[CacheBuffer, ...]:
    """Buffers of rows of so many heads and elements of each, by name; of 8 bits also, behind all of
    them, the scale of each head, a float32."""
    own = tuple(CacheBuffer(name, *row, dtype) for name, row in rows.items())
    if dtype is None:
        return own
    return own + tuple(CacheBuffer(f"{b.name}_scale", b.heads, 1, "float32") for b in own)
