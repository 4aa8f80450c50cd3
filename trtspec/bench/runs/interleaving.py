"""Interleaving: how contenders share the moments of a machine whose speed varies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from trtspec.backends.device import free_memory

T = TypeVar("T")

UNSTEADY = 1.3
"""Rounds that differ by more than this factor are unreliable; their spread is marked."""
_WEIGHTS_SHARE = 0.75  # of the free memory; the rest is for caches


def turns(items: Sequence[T], count: int, size: int) -> Iterator[tuple[slice, Sequence[T]]]:
    """For each part of ``count`` prompts, of at most ``size``: its place, and the items in the
    order of this turn, alternately forwards and backwards."""
    for turn, first in enumerate(range(0, count, size)):
        yield slice(first, first + size), items[:: -1 if turn % 2 else 1]


def fit_together(weight_bytes: int, device: str) -> bool:
    """Whether models with that many bytes of weights can be open at the same time, and so
    interleaved by prompts; if not, a line says that whole rounds are interleaved."""
    most = int(free_memory(device) * _WEIGHTS_SHARE)
    if weight_bytes > most:
        print(
            f"whole rounds are interleaved: all models have {weight_bytes / 2**30:.1f} GiB of "
            f"weights, at most {most / 2**30:.1f} GiB of the free memory are for that"
        )
    return weight_bytes <= most


def spread(speeds: Sequence[float]) -> float:
    """The speed of the fastest round relative to the slowest."""
    return max(speeds) / min(speeds)


def spread_text(value: float) -> str:
    """For a table; marked if the rounds are unreliable."""
    return f"{value:.2f}{' !' if value > UNSTEADY else ''}"
