"""AdapterSizes: how many low-rank adapters an engine has room for, and how large these may be."""

from __future__ import annotations

from typing import NamedTuple


class AdapterSizes(NamedTuple):
    """number: of adapters that lie in its memory at once. rank: of the largest; smaller ones are
    filled up with zeros."""

    number: int
    rank: int
