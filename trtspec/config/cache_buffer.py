"""CacheBuffer: one of the named buffers that a layer's cache is made of, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

from trtspec.config.kv import CacheDtype

BufferKind: TypeAlias = Literal["paged", "slot", "step"]
"""What a buffer has rows of: every token, in blocks; every request, its state; every row of the
last call, of those that may be rejected what their request's state takes in once they are not."""


class CacheBuffer(NamedTuple):
    """What a layer keeps: a row has ``size`` elements of each of ``heads``. name: within its layer.
    dtype: None: that of the network.

    A state is of the tokens that are certain: a call takes in those rows itself, all but draft
    nodes, and leaves what it would take in of these in buffers of kind ``step``. From there the
    accepted ones are replayed, so that rejected ones leave nothing.
    """

    name: str
    heads: int
    size: int
    dtype: str | None = None
    kind: BufferKind = "paged"


def cache_buffers(
    rows: Mapping[str, tuple[int, int]], dtype: CacheDtype | None
) -> tuple[CacheBuffer, ...]:
    """Buffers of rows of so many heads and elements of each, by name; of 8 bits also, behind all of
    them, the scale of each head, a float32."""
    own = tuple(CacheBuffer(name, *row, dtype) for name, row in rows.items())
    if dtype is None:
        return own
    return own + tuple(CacheBuffer(f"{b.name}_scale", b.heads, 1, "float32") for b in own)
