"""CacheBuffer: one of the named buffers that a layer's cache is made of, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class CacheBuffer:
    """name: within its layer. shape: of what is kept ``per`` token (in blocks; heads first) or
    request (in slots), or of what a call's inputs were, per row; in elements. dtype: None: the
    network's."""

    name: str
    shape: tuple[int, ...]
    per: Literal["token", "request", "row"] = "token"
    dtype: str | None = None
