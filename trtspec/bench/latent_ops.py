"""Times attention over latents beside reading them from memory, and its two forms on prompts.

python -m trtspec.bench.latent_ops [--threads N] [--seconds S]
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trtspec.bench.ops import BLOCK_SIZE, AttentionShape, attention_call, begin, beside_reading
from trtspec.bench.report.floor import MemorySpeed, copies, seconds_per_call
from trtspec.ops import head_products, latent_tree_attention, linear, pack_linear


class LatentShape(NamedTuple):
    """A layer's latent attention; its numbers are DeepSeek-V2-Lite's (V3 has 128 heads)."""

    heads: int = 16
    rank: int = 512
    rope_dim: int = 64
    plain_dim: int = 128
    value_dim: int = 128

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        return (self.rank + self.rope_dim) * dtype.itemsize


def latent_call(
    shape: LatentShape, dtype: torch.dtype, caches: tuple[Tensor, Tensor], batch: int, rows: int
) -> Callable[[], Tensor]:
    """``rows`` causal rows of each of ``batch`` requests that share the caches' blocks evenly, all
    but the rows' own places being committed."""
    blocks = caches[0].shape[0] // batch
    context, total = blocks * BLOCK_SIZE - rows, batch * rows
    tables = torch.arange(batch * blocks, dtype=torch.int32).view(batch, blocks)
    slots = tables[:, :1].long() * BLOCK_SIZE + torch.arange(context, context + rows)

    def random(*size: int) -> Tensor:
        return torch.randn(total, *size).to(dtype)

    arguments: tuple[Any, ...] = (
        random(shape.heads, shape.rank),
        random(shape.heads, shape.rope_dim),
        random(shape.rank),
        random(shape.rope_dim),
        *caches,
        slots.flatten(),
        tables,
        torch.arange(0, total + 1, rows, dtype=torch.int32),
        torch.full((batch,), context, dtype=torch.int32),
        torch.zeros(batch, dtype=torch.bool),
        torch.zeros(total, 1, dtype=torch.int64),
        (shape.plain_dim + shape.rope_dim) ** -0.5,
    )
    return partial(latent_tree_attention, *arguments)


def new_caches(shape: LatentShape, dtype: torch.dtype, tokens: int) -> tuple[Tensor, Tensor]:
    blocks = -(-tokens // BLOCK_SIZE)
    latents, keys = (
        torch.randn(blocks, BLOCK_SIZE, 1, size).to(dtype) for size in (shape.rank, shape.rope_dim)
    )
    return latents, keys


def bench_decode(
    shape: LatentShape,
    dtype: torch.dtype,
    batch: int,
    context: int,
    speed: MemorySpeed,
    seconds: float,
) -> None:
    """One row per request."""
    speed.sample()
    size = batch * context * shape.bytes_per_token(dtype)
    caches = [new_caches(shape, dtype, batch * context) for _ in range(copies(size))]
    calls = [latent_call(shape, dtype, pair, batch, 1) for pair in caches]
    taken = seconds_per_call(calls, seconds)
    multiplied = batch * context * shape.heads * (2 * shape.rank + shape.rope_dim)
    print(
        f"latents {shape.heads} heads {str(dtype).removeprefix('torch.'):9} batch {batch}"
        f" context {context:6}: {taken * 1e3:8.3f} ms {size / taken / 1e9:6.1f} GB/s"
        f" {2 * multiplied / taken / 1e9:7.1f} GFLOP/s   {beside_reading(size, taken, speed)}",
        flush=True,
    )


def bench_prompt(
    shape: LatentShape, dtype: torch.dtype, context: int, rows: int, seconds: float
) -> None:
    """``rows`` of a prompt after ``context`` of its tokens in both forms: absorbed, including the
    projections of queries and values, and expanded, including the expansion of all latents to keys
    and values."""
    tokens = context + rows
    attend = latent_call(shape, dtype, new_caches(shape, dtype, tokens), 1, rows)
    queries = torch.randn(rows, shape.heads, shape.plain_dim).to(dtype)
    latents = torch.randn(rows, shape.heads, shape.rank).to(dtype)
    k_up = torch.randn(shape.heads, shape.plain_dim, shape.rank).to(dtype)
    v_up = torch.randn(shape.heads, shape.rank, shape.value_dim).to(dtype)

    def absorbed() -> None:
        head_products(queries, k_up)
        attend()
        head_products(latents, v_up)

    width = shape.heads * (shape.plain_dim + shape.value_dim)
    up = pack_linear(torch.randn(width, shape.rank).to(dtype))
    cached = torch.randn(tokens, shape.rank).to(dtype)
    plain = AttentionShape(shape.heads, shape.heads, shape.plain_dim + shape.rope_dim)
    blocks = -(-tokens // BLOCK_SIZE)
    k, v = torch.randn(2, blocks, BLOCK_SIZE, plain.heads, plain.head_dim).to(dtype)
    attend_expanded = attention_call(plain, dtype, k, v, context, rows)

    def expanded() -> None:
        linear(cached, up, None, width)
        attend_expanded()

    taken = [seconds_per_call([call], seconds) for call in (absorbed, expanded)]
    print(
        f"prompt of {shape.heads} heads {str(dtype).removeprefix('torch.'):9} context {context:6}"
        f" rows {rows:4}: absorbed {taken[0] * 1e3:9.2f} ms, expanded {taken[1] * 1e3:9.2f} ms"
        f" (x{taken[0] / taken[1]:.2f})",
        flush=True,
    )


def main() -> None:
    shape, (seconds, speed) = LatentShape(), begin("Times attention over latents.")
    for dtype in (torch.bfloat16, torch.float32):
        for batch in (1, 8):
            for context in (2048, 16384):
                bench_decode(shape, dtype, batch, context, speed, seconds)
    bench_decode(LatentShape(heads=128), torch.bfloat16, 1, 16384, speed, seconds)
    for context, rows in ((0, 512), (0, 2048), (7680, 512), (8160, 32), (8184, 8)):
        bench_prompt(shape, torch.bfloat16, context, rows, seconds)


if __name__ == "__main__":
    main()
