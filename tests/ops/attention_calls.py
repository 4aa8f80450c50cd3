"""Calls of `paged_tree_attention` over caches whose blocks are scattered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class Model:
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    dtype: torch.dtype = torch.float32
    sliding_window: int = 0
    soft_cap: float = 0.0
    sinks: bool = False


@dataclass(frozen=True)
class Rows:
    """Rows of one request with `context` committed tokens; row i is written at cache position
    context + offsets[i]. `sees` lists, for a tree, the offsets that each row sees."""

    context: int
    count: int
    sees: Sequence[Sequence[int]] | None = None
    offsets: Sequence[int] | None = None
    depths: Sequence[int] | None = None  # position of a row - context; its offset if not given
    padding: int = 0  # rows at the end with slot -1


@dataclass
class Cache:
    """Paged caches whose blocks are handed out in a shuffled order, with garbage where nothing is
    written."""

    model: Model
    block_size: int = 16
    num_blocks: int = 64
    k: torch.Tensor = field(init=False)
    v: torch.Tensor = field(init=False)
    order: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        shape = (self.num_blocks, self.block_size, self.model.kv_heads, self.model.head_dim)
        self.k = torch.full(shape, float("nan"), dtype=self.model.dtype)
        self.v = torch.full(shape, float("nan"), dtype=self.model.dtype)
        generator = torch.Generator().manual_seed(self.num_blocks)
        self.order = torch.randperm(self.num_blocks, generator=generator).int()

    def fill(self, blocks: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Commits K/V [n, Hkv, D] to the first positions of a request."""
        slots = self.slots(blocks, torch.arange(len(k)))
        self.k.view(-1, *k.shape[1:])[slots] = k
        self.v.view(-1, *v.shape[1:])[slots] = v

    def slots(self, blocks: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return blocks[positions // self.block_size].long() * self.block_size + (
            positions % self.block_size
        )


def random_rows(model: Model, count: int, heads: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, heads, model.head_dim, generator=generator).to(model.dtype)


def attend(
    op: object,
    cache: Cache,
    blocks: Sequence[torch.Tensor],
    requests: Sequence[Rows],
    qkv: Sequence[tuple[torch.Tensor, torch.Tensor, torch.Tensor]],
    *,
    words: int = 1,
    extra_rows: int = 0,
    validate: bool = False,
) -> list[torch.Tensor]:
    """One call of the op for the given requests; the output rows of each request."""
    model = cache.model
    positions, slots, masks = [], [], []
    starts = [0]
    for rows, table in zip(requests, blocks, strict=True):
        offsets = torch.tensor(list(rows.offsets or range(rows.count)))
        depths = torch.tensor(list(rows.depths)) if rows.depths is not None else offsets
        positions.append(rows.context + depths)
        slot = cache.slots(table, rows.context + offsets)
        slot[rows.count - rows.padding :] = -1
        slots.append(slot)
        mask = torch.zeros(rows.count, words, dtype=torch.int64)
        for i, seen in enumerate(rows.sees or ()):
            for j in seen:
                bit = 1 << (j % 64)
                mask[i, j // 64] |= bit if bit < 1 << 63 else bit - (1 << 64)
        masks.append(mask)
        starts.append(starts[-1] + rows.count)
    width = max(len(table) for table in blocks)
    tables = torch.full((len(blocks), width), -1, dtype=torch.int32)
    for i, table in enumerate(blocks):
        tables[i, : len(table)] = table
    q, k, v = (torch.cat([part[i] for part in qkv]) for i in range(3))
    if extra_rows:
        q, k, v = (torch.cat([x, x[:1].expand(extra_rows, -1, -1)]) for x in (q, k, v))
        positions.append(torch.zeros(extra_rows, dtype=torch.int64))
        slots.append(torch.full((extra_rows,), -1))
        masks.append(torch.zeros(extra_rows, words, dtype=torch.int64))
    arguments = (
        q,
        k,
        v,
        cache.k,
        cache.v,
        torch.cat(positions),
        torch.cat(slots),
        tables,
        torch.tensor(starts, dtype=torch.int32),
        torch.tensor([rows.context for rows in requests], dtype=torch.int32),
        torch.tensor([rows.sees is not None for rows in requests]),
        torch.cat(masks),
        model.head_dim**-0.5,
        model.sliding_window,
        model.soft_cap,
        torch.linspace(-2, 3, model.heads) if model.sinks else None,
    )
    if validate:
        torch.library.opcheck(torch.ops.trtspec.paged_tree_attention.default, arguments)
    out = op(*arguments)  # type: ignore[operator]
    if extra_rows:
        assert not out[-extra_rows:].any()
    return [out[starts[i] : starts[i + 1]] for i in range(len(requests))]


def setup_call(
    model: Model, requests: Sequence[Rows], block_size: int
) -> tuple[list[Cache], list[torch.Tensor], list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]]:
    """Two equal caches, block tables and random rows for a call."""
    needed = [
        (r.context + max(*(r.offsets or [0]), r.count) + block_size) // block_size for r in requests
    ]
    caches = [Cache(model, block_size, sum(needed) + 3) for _ in range(2)]
    blocks, qkv, used = [], [], 0
    for i, (rows, need) in enumerate(zip(requests, needed, strict=True)):
        table = caches[0].order[used : used + need]
        used += need
        blocks.append(table)
        k = random_rows(model, rows.context, model.kv_heads, 100 + i)
        v = random_rows(model, rows.context, model.kv_heads, 200 + i)
        for cache in caches:
            cache.fill(table, k, v)
        qkv.append(
            (
                random_rows(model, rows.count, model.heads, 300 + i),
                random_rows(model, rows.count, model.kv_heads, 400 + i),
                random_rows(model, rows.count, model.kv_heads, 500 + i),
            )
        )
    return caches, blocks, qkv
