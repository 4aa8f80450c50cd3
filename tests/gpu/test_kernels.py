"""Every CUDA kernel, through ``torch.ops.trtspec.*`` on CUDA tensors, against its reference: exact
where decisions are made, a float64 reference to rounding where sums are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from trtspec.bench.gpu_bringup.attention import TILES, force
from trtspec.config.tree import TreeShape
from trtspec.models.rope import Rotation, rotate
from trtspec.ops import (
    accept,
    accept_reference,
    causal_conv,
    causal_conv_reference,
    gated_delta,
    gated_delta_reference,
    kv_compact,
    kv_compact_reference,
    mamba2,
    mamba2_reference,
    paged_tree_attention,
)
from trtspec.ops.acceptance import accept_trees
from trtspec.ops.build_tree import expand_tree, keep_best, marginal_trees
from trtspec.ops.few_row_linear import FEW_ROWS, Values, few_row_linear, pack_tiles
from trtspec.ops.linear_quantised import pack_groups
from trtspec.ops.quantised_cache import paged_tree_attention_8bit
from trtspec.ops.resident_step import ResidentTensors, advance, pack_rollout, pack_verify
from trtspec.ops.sampling import (
    draft_candidates,
    draft_candidates_reference,
    sample,
    sample_reference,
)
from trtspec.ops.state_walk import StateWalk
from trtspec.speculative.marginals import MarginalTree

from ..ops import state_calls, tree_calls
from ..ops.resident_step_reference import (
    advance_reference,
    pack_rollout_reference,
    pack_verify_reference,
)
from ..ops.test_resident_step import VOCAB, assert_equal, drawn

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]

TOLERANCE = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 3e-2}


# -- attention ----------------------------------------------------------------------------------


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


def on_gpu(arguments: Sequence[Any]) -> list[Any]:
    return [x.cuda() if isinstance(x, Tensor) else x for x in arguments]


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


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("pairs", [64, 20])
def test_rotated_attention_has_the_bits_of_rotating_first(pairs: int, interleaved: bool) -> None:
    requests = [(250, 24, True), (40, 20, False)]
    device = on_gpu(attention_inputs(requests, 8, 2, 128, torch.bfloat16, 16, 0))
    q, k, v, k_cache, v_cache, *rows = device
    written = k_cache.clone(), v_cache.clone()
    angles = torch.randn(q.shape[0], 1, pairs, device=q.device)
    rotation = Rotation(angles.cos(), angles.sin(), interleaved)
    op = torch.ops.trtspec._rotated_tree_attention
    got = op(q, k, v, k_cache, v_cache, *rows, *rotation)
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


# -- sampling -----------------------------------------------------------------------------------


def sampling_columns(rows: int, generator: torch.Generator) -> list[Tensor]:
    def choose(values: list[float]) -> Tensor:
        return torch.tensor(values)[torch.randint(len(values), (rows,), generator=generator)]

    def integers(low: int, high: int) -> Tensor:
        return torch.randint(low, high, (rows,), generator=generator)

    return [
        choose([0.0, 0.7, 1.0, 1.0, 2.5, 0.01]),
        choose([0, 0, -1, 1, 5, 50, 100000]).int(),
        choose([1.0, 1.0, 0.9, 0.5, 0.0, 0.999]),
        choose([0.0, 0.0, 0.0, 0.1, 0.5, 1.0]),
        integers(-(2**62), 2**62),
        integers(0, 5),
        integers(0, 10000),
    ]


def sampling_case(case: int, rows: int) -> tuple[Tensor, list[Tensor]]:
    """Logits (spread, rounded to ties, with -inf, with a broken row) and the rows' values."""
    generator = torch.Generator().manual_seed(case)
    vocab = (7, 1000, 5001, 32000, 131072)[case % 5]
    logits = torch.randn(rows, vocab, generator=generator) * (1.0, 3.0, 8.0)[case % 3]
    if case % 4 == 1:
        logits = (logits * 2).round() / 2
    if case % 4 == 2:
        logits[torch.rand(rows, vocab, generator=generator) < 0.5] = -float("inf")
    if case % 4 == 3:
        logits[0, vocab // 2] = float("nan")
    return logits, sampling_columns(rows, generator)


@pytest.mark.parametrize("case", range(20))
def test_sample(case: int) -> None:
    """The CPU's ids to the bit, which are the reference's unless two scores agree to 1e-12."""
    logits, columns = sampling_case(case, 12)
    got = sample(logits.cuda(), *(x.cuda() for x in columns)).cpu()
    assert torch.equal(got, sample(logits, *columns))
    assert torch.equal(got, sample_reference(logits, *columns))


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("case", range(10))
def test_draft_candidates(case: int, mapped: bool) -> None:
    logits, columns = sampling_case(case, 8)
    vocab = logits.shape[1]
    token_map = 3 * torch.arange(vocab) + 1 if mapped else None
    device_map = token_map.cuda() if token_map is not None else None
    k = min(vocab, (1, 4, 10)[case % 3])
    device_columns = [x.cuda() for x in columns]
    ids, logprobs = draft_candidates(logits.cuda(), *device_columns, device_map, k)
    for compared in (draft_candidates, draft_candidates_reference):
        want_ids, want_logprobs = compared(logits, *columns, token_map, k)
        assert torch.equal(ids.cpu(), want_ids)
        torch.testing.assert_close(logprobs.cpu(), want_logprobs, rtol=1e-6, atol=1e-6)


# -- acceptance and the cache -------------------------------------------------------------------


def test_accept() -> None:
    generator = torch.Generator().manual_seed(3)
    for _ in range(20):
        counts = torch.randint(1, 70, (9,), generator=generator).tolist()
        parents = [
            -1 if row == 0 else max(0, row - 1 - int(torch.randint(5, (), generator=generator)))
            for count in counts
            for row in range(count)
        ]
        arguments = (
            torch.randint(2, (sum(counts),), generator=generator),
            torch.randint(2, (sum(counts),), generator=generator),
            torch.tensor(parents, dtype=torch.int32),
            torch.tensor([0, *counts]).cumsum(0).int(),
        )
        accepted_rows, num_emitted = accept(*(x.cuda() for x in arguments))
        want_rows, want_emitted = accept_reference(*arguments)
        width = want_rows.shape[1]
        assert torch.equal(accepted_rows.cpu()[:, :width], want_rows)
        assert torch.equal(num_emitted.cpu(), want_emitted)


@pytest.mark.parametrize("is_static", [False, True])
def test_growth(is_static: bool) -> None:
    """Pools and trees are the CPU's, also with more candidates than a block keeps at hand."""
    for shape in ((3, 4, 5, 31), (5, 10, 6, 59), (1, 1, 7, 7), (2, 64, 4, 200)):
        found = tree_calls.grow(expand_tree, keep_best, shape, is_static, 6, "cuda")
        expected = tree_calls.grow(expand_tree, keep_best, shape, is_static, 6)
        tree_calls.assert_same(found, expected)


@pytest.mark.parametrize("shape", [TreeShape(4, 5, 60), TreeShape.static([[0], [1], [1, 2]])])
def test_marginal_trees(shape: TreeShape) -> None:
    arguments = tree_calls.marginals(MarginalTree(shape), shape.num_steps, 5, 1)
    tree_calls.assert_same(marginal_trees(*on_gpu(arguments)), marginal_trees(*arguments))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_kv_compact(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(4)
    for pairs in (1, 40, 900):
        caches = [torch.randn(70, 16, 2, 40, generator=generator).to(dtype) for _ in range(6)]
        device_caches = [cache.cuda() for cache in caches]
        src = torch.randperm(70 * 16, generator=generator)[:pairs]
        dst = torch.randperm(70 * 16, generator=generator)[:pairs]
        src[::7] = -1
        kv_compact(device_caches, src.cuda(), dst.cuda())
        kv_compact_reference(caches, src, dst)
        for got, want in zip(device_caches, caches, strict=True):
            assert torch.equal(got.cpu(), want)


# -- states -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("case", ["mixed", "prompt"])
def test_states(dtype: torch.dtype, case: str) -> None:
    """The convolution, the delta rule and Mamba-2 over chains and trees; states and kept rows
    too."""
    requests = state_calls.CASES[case]
    walk = state_calls.make_walk(requests, state_calls.EXTRA)
    count, states, near = len(walk.tree_mask), state_calls.NUM_STATES, TOLERANCE[dtype]
    heads, key, value, channels = 4, 40, 70, 2 * 2 * 40 + 4 * 70

    def compare(op: Any, reference: Any, given: list[Tensor], *last: Any) -> None:
        placed, wide = [x.cuda() for x in given], [x.double() for x in given]
        got = op(*placed, StateWalk(*(x.cuda() for x in walk)), *last)
        want = reference(*wide, walk, *last)
        for ours, theirs in zip((got, *placed), (want, *wide), strict=True):
            torch.testing.assert_close(ours.cpu().double(), theirs, rtol=near, atol=near)

    noise = state_calls.noise
    x, kept = noise(count, channels, seed=1, dtype=dtype), torch.zeros(count, 1, channels).to(dtype)
    weight, bias = (noise(*s, seed=2, dtype=dtype) for s in ((4, channels), (channels,)))
    tail = noise(states, 3, channels, seed=3, dtype=dtype)
    compare(causal_conv, causal_conv_reference, [x, weight, bias, tail, kept])
    gates = noise(count, 2 * heads, seed=4, dtype=dtype)
    a_log, dt_bias = noise(heads, seed=5), noise(heads, seed=6)
    state, kept = noise(states, heads, key * value, seed=7), torch.zeros_like(gates).unsqueeze(1)
    given = [x, gates, a_log, dt_bias, state, kept]
    compare(gated_delta, gated_delta_reference, given, key)
    groups, size = 2, 20
    gate = noise(count, channels - 2 * groups * size, seed=8, dtype=dtype)
    steps, skip = gates[:, heads:], noise(heads, seed=9)
    state = noise(states, heads, size * gate.shape[1] // heads, seed=10)
    given = [x, steps, gate, a_log, dt_bias, skip, state, torch.zeros_like(steps).unsqueeze(1)]
    compare(mamba2, mamba2_reference, given, groups)


# -- steps of requests that the device keeps ----------------------------------------------------


def test_resident_step() -> None:
    """Packing, and what becomes of random samples, bit for bit."""
    for seed in range(40):
        case = drawn(seed)
        behind, not_final = case.rule
        own, items, chunk, draft, tables = on_cuda(
            (case.copied, case.items, case.chunk, case.draft, case.tables)
        )
        sizes = {"behind": behind, "num_rows": 9 * len(case.items) + 3, **case.sizes}
        fed = pack_rollout(own, tables[1], items, **sizes)
        expected = pack_rollout_reference(case.kept, case.tables[1], case.items, **sizes)
        assert_equal(on_cpu(fed), expected)
        sizes |= {"num_rows": case.padding, "num_logits": case.padding}
        call = pack_verify(own, tables[0], items, chunk, draft, **sizes)
        given = case.tables[0], case.items, case.chunk
        want = pack_verify_reference(case.kept, *given, case.draft, **sizes)
        assert_equal(on_cpu(call), want)
        noise = torch.Generator().manual_seed(seed)
        sampled = torch.randint(-1, VOCAB, (case.padding,), generator=noise)
        walk = sampled, *accept_trees(sampled, want.tokens, want.parents, want.row_start, 72)
        rule = {"behind": behind, "not_final": not_final}
        rule["tokens_per_block"] = case.sizes["tokens_per_block"]
        found = advance(own, tables[0], items, chunk, call, *on_cuda(walk), **rule)
        kept: ResidentTensors = case.copied
        assert_equal(on_cpu(found), advance_reference(kept, *given, want, *walk, **rule))
        assert_equal(on_cpu(own), kept)


def on_cuda(nested: Any) -> Any:
    """The tensors of nested tuples, on the device."""
    return tree_map(Tensor.cuda, nested)


def on_cpu(nested: Any) -> Any:
    return tree_map(Tensor.cpu, nested)
@pytest.mark.parametrize("values", Values)
def test_few_row_linear(values: Values) -> None:
    """A row has its bits alone and among others, up to the rows that torch multiplies."""
    n, k, size = 288, 1088, 0 if values is Values.rows else 32
    x = torch.randn(FEW_ROWS + 1, k).bfloat16().cuda()
    given: dict[str, Any] = {"values": values}
    if values is Values.rows:
        weight = torch.randn(n, k).bfloat16() / k**0.5
    else:
        patterns = torch.randint(1 << min(values.bits, 6), (n, k), dtype=torch.uint8)
        weight = pack_tiles(patterns, values.bits)
        scales = pack_groups(torch.rand(n, k // size) / k**0.5 / 8)
        given |= {"group_size": size, "scales": scales.cuda()}
    weight, bias = weight.cuda(), torch.randn(n).bfloat16().cuda()
    on_cpu = {name: x.cpu() if isinstance(x, Tensor) else x for name, x in given.items()}
    for swiglu in (False, True):
        call = partial(few_row_linear, weight=weight, bias=bias, out_features=n)
        call = partial(call, out_dtype=torch.float32, swiglu=swiglu, **given)
        want = few_row_linear(
            x.cpu(), weight.cpu(), bias.cpu(), n, torch.float32, swiglu=swiglu, **on_cpu
        )
        few, many = call(x[:FEW_ROWS]), call(x)
        torch.testing.assert_close(few.cpu(), want[:FEW_ROWS], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(many.cpu(), want, rtol=2e-2, atol=2e-2)
        for first, rows in ((0, 1), (7, 9), (20, 33)):
            assert torch.equal(call(x[first : first + rows]), few[first : first + rows])
