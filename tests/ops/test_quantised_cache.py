"""Attention over caches of 8 bits against its reference, on every instruction set."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trtspec.ops.quantised_cache import (
    latent_tree_attention_8bit,
    latent_tree_attention_8bit_reference,
    paged_tree_attention_8bit,
    paged_tree_attention_8bit_reference,
    rounded_rows,
)

from . import test_attention, test_latent_attention
from .attention_calls import Model, Rows, attend, setup_call
from .each_isa import each_isa
from .latent_calls import Shape, setup
from .latent_calls import attend as attend_latents

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
MIXED = test_attention.CASES["mixed"]

isa = each_isa("generic", "avx2", "avx512", "avx512_bf16")


class Over8Bits:
    """An op over the 8-bit form of the two caches that a call is given; where nothing was written,
    the scales are NaN."""

    def __init__(self, op: Any, caches: tuple[torch.Tensor, torch.Tensor], first: int) -> None:
        self.op = op
        self.first = first
        pairs = [rounded_rows(cache.nan_to_num(0)) for cache in caches]
        self.buffers = [*(values for values, _ in pairs), *(steps for _, steps in pairs)]
        for cache, scales in zip(caches, self.buffers[2:], strict=True):
            scales[cache.isnan().any(-1, keepdim=True)] = torch.nan

    def __call__(self, *arguments: Any) -> torch.Tensor:
        before, behind = arguments[: self.first], arguments[self.first + 2 :]
        result: torch.Tensor = self.op(*before, *self.buffers, *behind)
        return result


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.float().nan_to_num(7.0), b.float().nan_to_num(7.0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(4, 2, 24), (8, 2, 128), (7, 1, 80)])
def test_equals_the_reference(isa: str, dtype: torch.dtype, heads: tuple[int, int, int]) -> None:
    for options in ({}, {"sliding_window": 9, "soft_cap": 0.7}, {"sinks": True}):
        model = Model(*heads, dtype=dtype, **options)
        caches, blocks, qkv = setup_call(model, MIXED, 16)
        ops = [
            Over8Bits(op, (caches[0].k, caches[0].v), 3)
            for op in (paged_tree_attention_8bit, paged_tree_attention_8bit_reference)
        ]
        got, want = (attend(op, caches[0], blocks, MIXED, qkv, extra_rows=2) for op in ops)
        near = test_attention.TOLERANCE[dtype]
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=near, atol=near)
        assert all(map(same, ops[0].buffers, ops[1].buffers))


@pytest.mark.parametrize("dtype", DTYPES)
def test_latents_equal_the_reference(isa: str, dtype: torch.dtype) -> None:
    for sizes in test_latent_attention.SHAPES:
        shape = Shape(*sizes, dtype)
        caches, queries = setup(shape, MIXED)
        given = (caches.latents, caches.keys)
        ops = [
            Over8Bits(op, given, 4)
            for op in (latent_tree_attention_8bit, latent_tree_attention_8bit_reference)
        ]
        got, want = (attend_latents(op, shape, caches, MIXED, queries, extra_rows=2) for op in ops)
        near = 2 * test_latent_attention.TOLERANCE[dtype]
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=near, atol=near)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_do_not_depend_on_the_call(isa: str, dtype: torch.dtype) -> None:
    """A row alone, after those before it, is what it is in a chunk, and as the chain of a tree."""
    model = Model(8, 2, 64, dtype=dtype)
    chunk = [Rows(200, 6)]
    caches, blocks, qkv = setup_call(model, chunk, 16)
    whole = Over8Bits(paged_tree_attention_8bit, (caches[0].k, caches[0].v), 3)
    (together,) = attend(whole, caches[0], blocks, chunk, qkv)
    single = Over8Bits(paged_tree_attention_8bit, (caches[0].k, caches[0].v), 3)
    for i in range(6):
        own = [tuple(x[i : i + 1] for x in qkv[0])]
        (row,) = attend(single, caches[0], blocks, [Rows(200 + i, 1)], own)  # type: ignore[arg-type]
        assert torch.equal(row[0], together[i])
    chained = Over8Bits(paged_tree_attention_8bit, (caches[0].k, caches[0].v), 3)
    sees = [list(range(i + 1)) for i in range(6)]
    (tree,) = attend(chained, caches[0], blocks, [Rows(200, 6, sees=sees)], qkv)
    assert torch.equal(tree, together)
    for other in (single, chained):
        assert all(map(same, whole.buffers, other.buffers))


def test_what_is_not_finite_shows(isa: str) -> None:
    model = Model(2, 1, 32)
    caches, blocks, qkv = setup_call(model, [Rows(0, 3)], 16)
    for value in (torch.nan, torch.inf):
        q, k, v = (x.clone() for x in qkv[0])
        k[1, 0, 5] = value
        op = Over8Bits(paged_tree_attention_8bit, (caches[0].k, caches[0].v), 3)
        (out,) = attend(op, caches[0], blocks, [Rows(0, 3)], [(q, k, v)])
        assert out[0].isfinite().all() and out[1:].isnan().all()


def test_opcheck() -> None:
    model = Model(4, 2, 24)
    caches, blocks, qkv = setup_call(model, [Rows(5, 2)], 16)
    found: list[Any] = []
    op = Over8Bits(lambda *x: found.append(x) or x[0], (caches[0].k, caches[0].v), 3)
    attend(op, caches[0], blocks, [Rows(5, 2)], qkv)
    torch.library.opcheck(torch.ops.trtspec.paged_tree_attention_8bit.default, found[0])
