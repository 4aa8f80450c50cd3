"""Part ``attention``: a layer of an 8B model by requests, context and rows, with the tiles that the
launcher chooses and with each kind of them forced, beside the floor of reading the K/V."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import product

import torch

from trtspec.bench.gpu_bringup.part import Case, Place
from trtspec.bench.ops import BLOCK_SIZE, AttentionShape, attention_call
from trtspec.bench.report.floor import copies, measure_bandwidth, seconds_on_device

CONTEXTS, REQUESTS, ROWS = (512, 2048, 8192, 32768, 131072), (1, 8, 64), (1, 6, 24, 64, 128)
_MOST_TOKENS = 64 * 32768
"""Of a call: K/V of 8 GiB."""
TILES = ("chosen", "narrow", "wide", "prefix")
"""In the order of ``AttentionTiles`` of ``plugins/kernels.hpp``."""
_MOST_COPIES = 8
_SHAPE, _DTYPE = AttentionShape(), torch.bfloat16


def cases(place: Place) -> Iterable[Case]:
    small = place.is_rehearsal
    contexts, requests = ((40,), (1, 2)) if small else (CONTEXTS, REQUESTS)
    rows, tiles = (ROWS[:2], TILES[:1]) if small else (ROWS, TILES)
    speed = measure_bandwidth(place.device)
    for count, context, tile in product(requests, contexts, tiles):
        if count * context > _MOST_TOKENS:
            continue
        key = {"requests": count, "context": context, "tiles": tile}
        yield Case(key, partial(by_rows, place.device, **key, rows=rows, speed=speed))


def by_rows(
    device: str, requests: int, context: int, tiles: str, rows: Sequence[int], speed: float
) -> Mapping[str, float]:
    """Microseconds of a call by the rows of each request, including writing their K/V."""
    size = 2 * requests * context * _SHAPE.kv_heads * _SHAPE.head_dim * _DTYPE.itemsize
    blocks = requests * -(-(context + max(rows)) // BLOCK_SIZE)
    dims = (2, blocks, BLOCK_SIZE, _SHAPE.kv_heads, _SHAPE.head_dim)
    count = min(copies(size), _MOST_COPIES)
    caches = [torch.randn(dims, dtype=_DTYPE, device=device) for _ in range(count)]
    figures = {"floor us": 1e6 * size / speed}
    if device == "cuda":
        force(tiles)
    for count in rows:
        calls = [attention_call(_SHAPE, _DTYPE, k, v, context, count, requests) for k, v in caches]
        figures[f"{count} rows us"] = 1e6 * seconds_on_device(calls, 0.02, device)
    return figures


def force(tiles: str) -> None:
    """Use tiles of one kind for all further calls of this process."""
    torch.ops.trtspec._force_attention_tiles(TILES.index(tiles))
