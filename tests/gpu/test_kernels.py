"""Every CUDA kernel, through ``torch.ops.trtspec.*`` on CUDA tensors, against its reference: exact
where decisions are made, a float64 reference to rounding where sums are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from trtspec.config.tree import TreeShape
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
)
from trtspec.ops.acceptance import accept_trees
from trtspec.ops.build_tree import expand_tree, keep_best, marginal_trees
from trtspec.ops.few_row_linear import FEW_ROWS, Values, few_row_linear, pack_tiles
from trtspec.ops.linear_quantised import pack_groups
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


def on_gpu(arguments: Sequence[Any]) -> list[Any]:
    return [x.cuda() if isinstance(x, Tensor) else x for x in arguments]


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
