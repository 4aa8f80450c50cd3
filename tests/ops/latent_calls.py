"""Calls of `latent_tree_attention` over caches whose blocks are scattered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .attention_calls import Rows


@dataclass(frozen=True)
class Shape:
    heads: int = 4
    rank: int = 24
    rope_dim: int = 8
    dtype: torch.dtype = torch.float32


@dataclass
class Caches:
    """Of latents and keys, with garbage where nothing is written; ``tables``: of each request."""

    latents: torch.Tensor
    keys: torch.Tensor
    tables: torch.Tensor


@dataclass
class Query:
    """What the rows of one request bring: ``q_latent``, ``q_rope``, ``latent``, ``key``."""

    tensors: tuple[torch.Tensor, ...]

    def rows(self, index: slice | list[int]) -> Query:
        return Query(tuple(tensor[index] for tensor in self.tensors))


def random(shape: Sequence[int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def setup(
    shape: Shape, requests: Sequence[Rows], block_size: int = 16
) -> tuple[Caches, list[Query]]:
    """Caches in which the context of every request is committed, and the queries of its rows."""
    needed = [
        (r.context + max(*(r.offsets or [0]), r.count) + block_size) // block_size for r in requests
    ]
    blocks = sum(needed) + 3
    order = torch.randperm(blocks, generator=torch.Generator().manual_seed(blocks)).int()
    caches = Caches(
        torch.full((blocks, block_size, 1, shape.rank), torch.nan, dtype=shape.dtype),
        torch.full((blocks, block_size, 1, shape.rope_dim), torch.nan, dtype=shape.dtype),
        torch.full((len(requests), max(needed)), -1, dtype=torch.int32),
    )
    queries, used = [], 0
    for i, (rows, need) in enumerate(zip(requests, needed, strict=True)):
        caches.tables[i, :need] = order[used : used + need]
        used += need
        at = slots(caches, i, torch.arange(rows.context))
        for cache, seed in ((caches.latents, 100), (caches.keys, 200)):
            width = cache.shape[-1]
            cache.view(-1, width)[at] = random((rows.context, width), shape.dtype, seed + i)
        sizes = [
            (shape.heads, shape.rank),
            (shape.heads, shape.rope_dim),
            (shape.rank,),
            (shape.rope_dim,),
        ]
        made = (
            random((rows.count, *size), shape.dtype, 300 + 10 * i + j)
            for j, size in enumerate(sizes)
        )
        queries.append(Query(tuple(made)))
    return caches, queries


def slots(caches: Caches, request: int, positions: torch.Tensor) -> torch.Tensor:
    size = caches.latents.shape[1]
    return caches.tables[request, positions // size].long() * size + positions % size


def attend(
    op: object,
    shape: Shape,
    caches: Caches,
    requests: Sequence[Rows],
    queries: Sequence[Query],
    *,
    first: int = 0,
    words: int = 1,
    extra_rows: int = 0,
    validate: bool = False,
) -> list[torch.Tensor]:
    """One call for requests ``first ..`` of the caches; the output rows of each."""
    slot_mapping, masks, starts = [], [], [0]
    for i, rows in enumerate(requests):
        slot = slots(
            caches, first + i, rows.context + torch.tensor(rows.offsets or range(rows.count))
        )
        slot[rows.count - rows.padding :] = -1
        slot_mapping.append(slot)
        mask = torch.zeros(rows.count, words, dtype=torch.int64)
        for row, seen in enumerate(rows.sees or ()):
            for j in seen:
                bit = 1 << (j % 64)
                mask[row, j // 64] |= bit if bit < 1 << 63 else bit - (1 << 64)
        masks.append(mask)
        starts.append(starts[-1] + rows.count)
    tensors = [torch.cat(parts) for parts in zip(*(q.tensors for q in queries), strict=True)]
    if extra_rows:
        tensors = [torch.cat([x, x[:1].expand(extra_rows, *x.shape[1:])]) for x in tensors]
        slot_mapping.append(torch.full((extra_rows,), -1))
        masks.append(torch.zeros(extra_rows, words, dtype=torch.int64))
    arguments = (
        *tensors,
        caches.latents,
        caches.keys,
        torch.cat(slot_mapping),
        caches.tables[first : first + len(requests)],
        torch.tensor(starts, dtype=torch.int32),
        torch.tensor([rows.context for rows in requests], dtype=torch.int32),
        torch.tensor([rows.sees is not None for rows in requests]),
        torch.cat(masks),
        (shape.rank + shape.rope_dim) ** -0.5,
    )
    if validate:
        torch.library.opcheck(torch.ops.trtspec.latent_tree_attention.default, arguments)
    out = op(*arguments)  # type: ignore[operator]
    if extra_rows:
        assert not out[-extra_rows:].any()
    return [out[starts[i] : starts[i + 1]] for i in range(len(requests))]
