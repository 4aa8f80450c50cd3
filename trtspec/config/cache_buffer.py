"""CacheBuffer: one of the named buffers that make up a layer's cache, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

from trtspec.config.kv import EIGHT_BITS, CacheDtype

BufferKind: TypeAlias = Literal["paged", "slot", "step"]
"""What a row of the buffer belongs to: a token, in blocks (paged); a request, its state (slot); or
a row of the last call, whose contribution to a state is pending until it is accepted (step)."""


class CacheBuffer(NamedTuple):
    """One buffer of a layer: each row has ``heads`` of ``size`` elements. name: unique within the
    layer. dtype: None: that of the network.

    A state covers committed tokens only. A call updates it with all rows except draft nodes, whose
    inputs it keeps in buffers of kind ``step``. The accepted ones are replayed from there, so
    rejected nodes leave no trace.
    """

    name: str
    heads: int
    size: int
    dtype: str | None = None
    kind: BufferKind = "paged"


def cache_buffers(
    rows: Mapping[str, tuple[int, int]], dtype: CacheDtype | None
) -> tuple[CacheBuffer, ...]:
    """Paged buffers of the given heads and sizes, by name; with 8-bit values also, after them,
    their float32 scales, one for each head."""
    own = tuple(CacheBuffer(name, *row, dtype) for name, row in rows.items())
    if dtype != EIGHT_BITS:
        return own
    return own + tuple(CacheBuffer(f"{b.name}_scale", b.heads, 1, "float32") for b in own)
