"""Times the native ops beside what they cannot beat: reading their weights or K/V from memory.

    python -m trtspec.bench.ops [--threads N] [--seconds S]

Every call works on other data than the call before, so that it comes from memory and not from a
cache, as in a model of many layers.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.bench.report.floor import (
    HIGHEST_SHARE,
    NOT_MEASURED,
    MemorySpeed,
    copies,
    linear_rates,
    seconds_per_call,
)
from trtspec.formats.base import WeightFormat
from trtspec.formats.registry import format_kinds
from trtspec.formats.stored import StoredWeight
from trtspec.ops import paged_tree_attention

BLOCK_SIZE = 32
GROUPS = (0, 64)
"""Input features that share a scale, for formats with groups; 0: all."""


@dataclass(frozen=True)
class AttentionShape:
    """A layer's attention: query heads, kv heads, head dimension."""

    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128


def beside_reading(size: int, seconds: float, speed: MemorySpeed) -> str:
    """The time just to read that many bytes, and how much longer a call took, by the best bandwidth
    sample so far."""
    read = size / speed.best
    if read > HIGHEST_SHARE * seconds:
        return NOT_MEASURED
    return f"read {read * 1e3:7.3f} ms (x{seconds / read:5.2f})"


def bench_linear(
    dtype: torch.dtype, width: int, rows: Sequence[int], speed: MemorySpeed, seconds: float
) -> None:
    """A square layer of `width` at several numbers of rows."""
    speed.sample()
    size = width * width * dtype.itemsize
    weights = [torch.randn(width, width).to(dtype) for _ in range(copies(size))]
    for count, rate, flops in linear_rates("cpu", dtype, width, rows, seconds):
        ours = size / rate
        x = torch.randn(count, width).to(dtype)
        theirs = seconds_per_call([partial(F.linear, x, weight) for weight in weights], seconds)
        name = str(dtype).removeprefix("torch.")
        print(
            f"linear {width}x{width} {name:9} rows {count:4}: {ours * 1e3:8.3f} ms"
            f" {rate / 1e9:6.1f} GB/s {flops / 1e9:7.1f} GFLOP/s"
            f"   {beside_reading(size, ours, speed)}"
            f"   torch {theirs * 1e3:8.3f} ms (x{theirs / ours:5.2f})",
            flush=True,
        )


def bench_format(
    weights: WeightFormat,
    label: str,
    dtype: torch.dtype,
    width: int,
    rows: Sequence[int],
    speed: MemorySpeed,
    seconds: float,
) -> None:
    """The same with weights in a format, and inputs of `dtype`."""
    speed.sample()
    size = weights.bytes(width, width, dtype)
    storage = weights.storage(width, width, dtype)
    first = {name: torch.empty(spec.shape, dtype=spec.dtype) for name, spec in storage.items()}
    weights.load([StoredWeight("weight", torch.randn(width, width))], first)
    layers = [{name: t.clone() for name, t in first.items()} for _ in range(copies(size))]
    name = str(dtype).removeprefix("torch.")
    for count in rows:
        x = torch.randn(count, width).to(dtype)
        product = partial(weights.product, norm=None, gated=False, residual=None)
        calls = [partial(product, layer, x, None, width, None) for layer in layers]
        ours = seconds_per_call(calls, seconds)
        print(
            f"{label} {width}x{width} {name:9} rows {count:4}:"
            f" {ours * 1e3:8.3f} ms {size / ours / 1e9:6.1f} GB/s"
            f" {2 * count * width * width / ours / 1e9:7.1f} GFLOP/s"
            f"   {beside_reading(size, ours, speed)}",
            flush=True,
        )


def attention_call(
    shape: AttentionShape,
    dtype: torch.dtype,
    k: Tensor,
    v: Tensor,
    context: int,
    rows: int,
    requests: int = 1,
) -> Callable[[], Tensor]:
    """A verify step of requests with `rows` causal rows each after `context` committed tokens,
    which share the caches' blocks evenly."""
    total = requests * rows
    q = torch.randn(total, shape.heads, shape.head_dim).to(dtype)
    kv = torch.randn(total, shape.kv_heads, shape.head_dim).to(dtype)
    tables = torch.arange(k.shape[0], dtype=torch.int32).view(requests, -1)
    positions = torch.arange(context, context + rows).repeat(requests)
    first = torch.arange(requests).repeat_interleave(rows) * tables.shape[1] * BLOCK_SIZE
    tensors = (
        *(q, kv, kv, k, v, positions, first + positions, tables),
        torch.arange(requests + 1, dtype=torch.int32) * rows,
        torch.full((requests,), context, dtype=torch.int32),
        torch.zeros(requests, dtype=torch.bool),
        torch.zeros(total, 1, dtype=torch.int64),
    )
    inputs: list[Any] = [*(x.to(k.device) for x in tensors), shape.head_dim**-0.5, 0]
    return lambda: paged_tree_attention(*inputs)


def bench_attention(
    shape: AttentionShape,
    dtype: torch.dtype,
    context: int,
    rows: Sequence[int],
    speed: MemorySpeed,
    seconds: float,
) -> None:
    """One request with `context` committed tokens, at several numbers of rows."""
    speed.sample()
    blocks = -(-(context + max(rows)) // BLOCK_SIZE)
    dims = (blocks, BLOCK_SIZE, shape.kv_heads, shape.head_dim)
    size = 2 * context * shape.kv_heads * shape.head_dim * dtype.itemsize
    caches = [torch.randn(2, *dims).to(dtype) for _ in range(copies(size))]
    for count in rows:
        calls = [attention_call(shape, dtype, x[0], x[1], context, count) for x in caches]
        ours = seconds_per_call(calls, seconds)
        name = str(dtype).removeprefix("torch.")
        print(
            f"attention {shape.heads}/{shape.kv_heads} x {shape.head_dim} {name:9}"
            f" context {context:6} rows {count:4}: {ours * 1e3:8.3f} ms"
            f" {size / ours / 1e9:6.1f} GB/s   {beside_reading(size, ours, speed)}",
            flush=True,
        )


def begin(description: str) -> tuple[float, MemorySpeed]:
    """Parse the flags that timings of ops share, and print the machine. Returns the seconds per
    figure, and a sample of the memory's bandwidth."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=1.0, help="for each figure")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    speed = MemorySpeed()
    speed.sample()
    isa = torch.ops.trtspec._get_isa()
    print(
        f"{arguments.threads} threads, {isa}, {speed.best / 1e9:.1f} GB/s; x of read: times the "
        "time to read the same bytes"
    )
    return arguments.seconds, speed


def main() -> None:
    seconds, speed = begin("Times the native ops beside reading memory.")
    for dtype in (torch.bfloat16, torch.float32):
        bench_linear(dtype, 4096, (1, 2, 4, 8, 16, 64, 512), speed, seconds)
    for kind in format_kinds().values():
        groups = dict.fromkeys((kind.group_size, *GROUPS))
        for group in (size for size in groups if size in kind.group_sizes):
            for bits in (0, 8, 16) if kind.rounded_inputs else (0,):
                label = f"linear {kind.name} group {group:3}" + f" x int{bits}" * (bits > 0)
                rows, weights = (1, 2, 4, 8, 16, 64, 512), kind.make(group, bits)
                for dtype in (torch.bfloat16, torch.float32):
                    bench_format(weights, label, dtype, 4096, rows, speed, seconds)
    shape = AttentionShape()
    for dtype in (torch.bfloat16, torch.float32):
        for context in (128, 1024, 4096):
            bench_attention(shape, dtype, context, (1, 8), speed, seconds)
    bench_attention(shape, torch.bfloat16, 3584, (512,), speed, seconds)
    bench_attention(shape, torch.bfloat16, 32768, (1, 8), speed, seconds)


if __name__ == "__main__":
    main()
