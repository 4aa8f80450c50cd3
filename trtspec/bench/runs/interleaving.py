"""Turns: how what is compared shares the moments of a machine whose speed changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from trtspec.backends.device import free_memory

T = TypeVar("T")

UNSTEADY = 1.3
"""Rounds that differ by more than this say little; their spread is marked."""
_WEIGHTS_SHARE = 0.75  # of the free memory; the rest is for caches


def turns(items: Sequence[T], count: int, size: int) -> Iterator[tuple[slice, Sequence[T]]]:
    """For each part of ``count`` prompts, of ``size`` at most: where it lies, and the items in the
    order of this turn, forwards and backwards alternately."""
    for turn, first in enumerate(range(0, count, size)):
        yield slice(first, first + size), items[:: -1 if turn % 2 else 1]


def fit_together(weight_bytes: int, device: str) -> bool:
    """Whether models with so many bytes of weights in all can be open at a time, so that they can
    be interleaved by prompts; if not, a line says that whole rounds are."""
    most = int(free_memory(device) * _WEIGHTS_SHARE)
    if weight_bytes > most:
        print(
            f"whole rounds are interleaved: all models have {weight_bytes / 2**30:.1f} GiB of "
            f"weights, at most {most / 2**30:.1f} GiB of the free memory are for that"
        )
    return weight_bytes <= most


def spread(speeds: Sequence[float]) -> float:
    """How many times faster the fastest round was than the slowest."""
    return max(speeds) / min(speeds)


def spread_text(value: float) -> str:
    """For a table; marked where the rounds say little."""
    return f"{value:.2f}{' !' if value > UNSTEADY else ''}"
