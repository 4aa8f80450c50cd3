"""Attention on CUDA tensors, through ``torch.ops.trtspec.*``: sums against a float64 reference, to
rounding; caches, and what is promised of bits, exactly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from trtspec.bench.gpu_bringup.attention import TILES, force
from trtspec.models.rope import Rotation, rotate
from trtspec.ops import paged_tree_attention
from trtspec.ops.quantised_cache import paged_tree_attention_8bit

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]

TOLERANCE = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 3e-2}


def on_gpu(arguments: Sequence[Any]) -> list[Any]:
    return [x.cuda() if isinstance(x, Tensor) else x for x in arguments]


def attention_inputs(
    requests: Sequence[tuple[int, int, bool]],
    heads: int,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    block_size: int,
    window: int,
) -> list[Any]:
    """The arguments of the op, on the CPU. A request is (committed tokens, rows, whether its rows
    are a random tree); two padding rows stand behind the last one."""
    torch.manual_seed(heads * head_dim + len(requests))
    rows = sum(count for _, count, _ in requests) + 2
    words = max(count for _, count, _ in requests) // 64 + 1
    width = max((context + count) // block_size + 1 for context, count, _ in requests)
    num_blocks = len(requests) * width
    cache = (num_blocks, block_size, kv_heads, head_dim)
    tables = torch.randperm(num_blocks).view(len(requests), width).int()
    fused = torch.randn(rows, heads + 2 * kv_heads, head_dim).to(dtype)
    positions = torch.zeros(rows, dtype=torch.int64)
    slots = torch.full((rows,), -1, dtype=torch.int64)
    mask = torch.zeros(rows, words * 64, dtype=torch.bool)
    starts = [0]
    for b, (context, count, is_tree) in enumerate(requests):
        first = starts[-1]
        depths = [0]
        for i in range(count):
            mask[first + i, i] = True
            if i > 0:
                parent = int(torch.randint(i, ())) if is_tree else i - 1
                mask[first + i] |= mask[first + parent]
                depths.append(depths[parent] + 1)
        positions[first : first + count] = context + torch.tensor(depths)
        at = context + torch.arange(count)
        slots[first : first + count] = (
            tables[b, at // block_size].long() * block_size + at % block_size
        )
        starts.append(first + count)
    bits = mask.view(rows, words, 64).long() << torch.arange(64)
    return [
        *fused.split([heads, kv_heads, kv_heads], dim=1),
        torch.randn(cache).to(dtype),
        torch.randn(cache).to(dtype),
        positions,
        slots,
        tables,
        torch.tensor(starts, dtype=torch.int32),
        torch.tensor([context for context, _, _ in requests], dtype=torch.int32),
        torch.tensor([is_tree for _, _, is_tree in requests]),
        bits.sum(-1),
        head_dim**-0.5,
        window,
    ]


def attention_float64(arguments: Sequence[Any]) -> Tensor:
    """What the op returns, in float64; the caches are written as the op does."""
    q, k, v, k_cache, v_cache, positions, slots, tables, starts, contexts = arguments[:10]
    is_tree, mask, scale, window = arguments[10:]
    keys, values = (cache.view(-1, *cache.shape[2:]) for cache in (k_cache, v_cache))
    written = slots >= 0
    keys[slots[written]], values[slots[written]] = k[written], v[written]
    group, block_size = q.shape[1] // k.shape[1], k_cache.shape[1]
    out = torch.zeros(q.shape, dtype=torch.float64)
    for b, context in enumerate(contexts.tolist()):
        first = int(starts[b])
        for t in range(first, int(starts[b + 1])):
            seen = torch.arange(context if is_tree[b] else context + t - first + 1)
            if window > 0:
                seen = seen[positions[t] - seen < window]
            if is_tree[b]:
                bits = (mask[t, :, None] >> torch.arange(64)) & 1
                seen = torch.cat([seen, context + bits.flatten().nonzero().flatten()])
            at = tables[b, seen // block_size].long() * block_size + seen % block_size
            row_keys = keys[at].double().repeat_interleave(group, dim=1)
            row_values = values[at].double().repeat_interleave(group, dim=1)
            scores = torch.einsum("hd,nhd->hn", q[t].double(), row_keys) * scale
            out[t] = torch.einsum("hn,nhd->hd", scores.softmax(-1), row_values)
    return out


@pytest.fixture
def prefix_tiles() -> Iterator[None]:
    force("prefix")
    yield
    force("chosen")


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 160])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (8, 2), (8, 1)])
@pytest.mark.parametrize(
    "requests",
    [
        [(500, 1, False), (3, 1, False), (0, 1, False)],
        [(300, 16, True), (0, 5, True), (129, 70, True)],
        [(0, 200, False), (70, 33, False), (40, 1, False), (40, 9, True)],
    ],
    ids=["decode", "trees", "chunks"],
)
@pytest.mark.parametrize("window", [0, 48])
def test_attention(
    requests: list[tuple[int, int, bool]],
    heads: int,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    window: int,
) -> None:
    inputs = attention_inputs(requests, heads, kv_heads, head_dim, dtype, 16, window)
    device_inputs = on_gpu(inputs)
    got = paged_tree_attention(*device_inputs)
    want = attention_float64(inputs)
    torch.testing.assert_close(got.cpu().double(), want, rtol=0, atol=TOLERANCE[dtype])
    for cache in (3, 4):  # written alike, and nothing else touched
        assert torch.equal(device_inputs[cache].cpu(), inputs[cache])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("head_dim", [64, 96, 128, 160, 20])
@pytest.mark.parametrize("window", [0, 48])
def test_attention_over_8_bits(head_dim: int, dtype: torch.dtype, window: int) -> None:
    """Caches as the CPU writes them, bit for bit; sums to rounding."""
    requests = [(500, 1, False), (129, 70, True), (70, 33, False), (40, 9, True)]
    q, k, v, *caches, positions, slots, tables, starts, contexts, is_tree, mask, scale, seen = (
        attention_inputs(requests, 8, 2, head_dim, dtype, 16, window)
    )
    values = [(40 * cache.float()).clamp(-127, 127).to(torch.int8) for cache in caches]
    scales = [torch.rand(*cache.shape[:3], 1) / 30 for cache in caches]
    rows = positions, slots, tables, starts, contexts, is_tree, mask, scale, seen
    inputs = [q, k, v, *values, *scales, *rows]
    device_inputs = on_gpu(inputs)
    got = paged_tree_attention_8bit(*device_inputs)
    want = paged_tree_attention_8bit(*inputs)
    torch.testing.assert_close(got.cpu(), want, rtol=0, atol=TOLERANCE[dtype])
    for cache in range(3, 7):
        assert torch.equal(device_inputs[cache].cpu(), inputs[cache])


@pytest.mark.usefixtures("prefix_tiles")
@pytest.mark.parametrize("window", [0, 48])
@pytest.mark.parametrize("head_dim", [64, 96, 128])
def test_attention_in_prefix_tiles(head_dim: int, window: int) -> None:
    """Sums to rounding, and each row with the bits that it has as a decode step of its own."""
    requests = [(250, 24, True), (1000, 1, False), (40, 200, False), (500, 9, True)]
    dtype = torch.bfloat16
    inputs = attention_inputs(requests, 8, 2, head_dim, dtype, 16, window)
    device = on_gpu(inputs)
    together = paged_tree_attention(*device)
    want = attention_float64(inputs)
    torch.testing.assert_close(together.cpu().double(), want, rtol=0, atol=TOLERANCE[dtype])
    if window == 0:
        for row in (0, 7, 23, 24, 25, 88, 224, 233):
            assert torch.equal(alone(device, row), together[row]), row


def alone(arguments: Sequence[Any], row: int) -> Tensor:
    """Attention of one row of a call to the same keys, each of which is a block of its own."""
    q, k, v, *caches, positions, slots, tables, starts, contexts, is_tree, mask, scale = arguments[
        :-1
    ]
    b = int((starts <= row).sum()) - 1
    context, index = int(contexts[b]), row - int(starts[b])
    seen = torch.arange(context + index + 1, device=q.device)
    if is_tree[b]:
        bits = (mask[row, :, None] >> torch.arange(64, device=q.device)) & 1
        seen = torch.cat([seen[:context], context + bits.flatten().nonzero().flatten()])
    size = caches[0].shape[1]
    keys = tables[b, seen // size] * size + (seen % size).int()
    one = slice(row, row + 1)
    return paged_tree_attention(
        *(q[one], k[:0], v[:0]),
        *(cache.view(-1, 1, *cache.shape[2:]) for cache in caches),
        *(positions[one], slots[one], keys[None]),
        torch.tensor([0, 1], dtype=torch.int32, device=q.device),
        torch.tensor([len(keys) - 1], dtype=torch.int32, device=q.device),
        torch.zeros(1, dtype=torch.bool, device=q.device),
        *(mask[one], scale, 0),
    )[0]


def rotated(*arguments: Any) -> Tensor:
    """The op, which no graph calls yet."""
    result: Tensor = torch.ops.trtspec._rotated_tree_attention(*arguments)
    return result


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("pairs", [64, 20])
def test_rotated_attention_has_the_bits_of_rotating_first(pairs: int, interleaved: bool) -> None:
    requests = [(250, 24, True), (40, 20, False)]
    device = on_gpu(attention_inputs(requests, 8, 2, 128, torch.bfloat16, 16, 0))
    q, k, v, k_cache, v_cache, *rows = device
    written = k_cache.clone(), v_cache.clone()
    angles = torch.randn(q.shape[0], 1, pairs, device=q.device)
    rotation = Rotation(angles.cos(), angles.sin(), interleaved)
    got = rotated(q, k, v, k_cache, v_cache, *rows, *rotation)
    want = paged_tree_attention(rotate(q, rotation), rotate(k, rotation), v, *written, *rows)
    assert torch.equal(got, want)
    assert torch.equal(k_cache, written[0]) and torch.equal(v_cache, written[1])


@pytest.mark.parametrize("tiles", TILES)
def test_attention_in_a_graph_follows_its_buffers(tiles: str) -> None:
    force(tiles)
    inputs = attention_inputs([(90, 4, True), (30, 4, True)], 8, 2, 64, torch.bfloat16, 16, 0)
    device = on_gpu(inputs)
    paged_tree_attention(*device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = paged_tree_attention(*device)
    # The same sizes with other content: rows divided otherwise, shorter contexts.
    other = attention_inputs([(17, 7, False), (64, 1, True)], 8, 2, 64, torch.bfloat16, 16, 0)
    for old, new in zip(device, other, strict=True):
        if isinstance(old, Tensor) and isinstance(new, Tensor) and old.shape == new.shape:
            old.copy_(new)
    for cache in (3, 4):
        device[cache][: other[cache].shape[0]] = other[cache].cuda()
    device[7][:, : other[7].shape[1]] = other[7].cuda()
    graph.replay()
    force("chosen")
    want = attention_float64(other)
    torch.testing.assert_close(out.cpu().double(), want, rtol=0, atol=TOLERANCE[torch.bfloat16])
