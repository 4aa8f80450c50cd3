"""latent_tree_attention and head_products against their references, and their bitwise promises."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from trtspec.ops import (
    head_products,
    head_products_reference,
    latent_tree_attention,
    latent_tree_attention_reference,
)

from .attention_calls import Rows
from .each_isa import each_isa
from .latent_calls import Shape, attend, random, setup

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 1e-2, torch.float16: 1e-3}
SHAPES = [(4, 24, 8), (1, 20, 6), (16, 64, 32), (9, 33, 10)]
TREE = Rows(
    context=137,
    count=6,
    sees=[[0], [0, 1], [0, 2], [0, 1, 3], [0, 2, 4], [0, 1, 3, 5]],
)
CASES = {
    "decode": [Rows(70, 1)],
    "prefill": [Rows(0, 145)],
    "a tile exactly": [Rows(63, 1), Rows(0, 64), Rows(128, 1)],
    "mixed": [Rows(5, 1), TREE, Rows(0, 9), Rows(130, 7, padding=3), replace(TREE, context=0)],
    "empty tree row": [replace(TREE, context=0, sees=[[], *list(TREE.sees or ())[1:]])],
}

isa = each_isa("generic", "avx2", "avx512", "avx512_bf16")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_equals_reference(isa: str, dtype: torch.dtype, case: str) -> None:
    for sizes in SHAPES:
        check(Shape(*sizes, dtype), CASES[case])


def check(shape: Shape, requests: list[Rows], words: int = 1) -> None:
    caches, queries = setup(shape, requests)
    others = copy.deepcopy(caches)
    rest = {"words": words, "extra_rows": 2}
    got = attend(latent_tree_attention, shape, caches, requests, queries, **rest)
    want = attend(latent_tree_attention_reference, shape, others, requests, queries, **rest)
    near = TOLERANCE[shape.dtype]
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=near, atol=near)
    for a, b in ((caches.latents, others.latents), (caches.keys, others.keys)):
        assert torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))


def test_tree_of_several_words() -> None:
    """Bits 63, 64 and beyond, at every alignment to the tiles of 64 tokens."""
    generator = torch.Generator().manual_seed(0)
    for context in (0, 1, 63, 64, 100):
        sees = [
            sorted({0, 63, i, *torch.randint(0, i + 1, (9,), generator=generator).tolist()})
            for i in range(150)
        ]
        check(Shape(), [Rows(context, 150, sees=sees)], words=3)


# -- bitwise promises --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_request_alone_equals_it_in_a_batch(isa: str, dtype: torch.dtype) -> None:
    shape = Shape(8, 64, 32, dtype)
    requests = [Rows(5, 1), TREE, Rows(0, 90), Rows(130, 7), replace(TREE, context=200)]
    caches, queries = setup(shape, requests)
    batch = attend(latent_tree_attention, shape, caches, requests, queries)
    for i, rows in enumerate(requests):
        part = [rows], [queries[i]]
        (alone,) = attend(latent_tree_attention, shape, caches, *part, first=i)
        assert torch.equal(alone, batch[i])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("context", [0, 3, 59, 128])
def test_whole_equals_chunks_and_scattered_path(isa: str, dtype: torch.dtype, context: int) -> None:
    """Rows of a chunk, one by one, as a chain and as nodes of a path among 80 others."""
    shape = Shape(8, 64, 32, dtype)
    path = [0, 7, 20, 63, 64, 79]  # rows of the tree
    sees: list[list[int]] = [[0]] * 80
    for i in range(1, 80):
        sees[i] = [0, i]
    for depth, node in enumerate(path):
        sees[node] = path[: depth + 1]
    tree, chain = Rows(context, 80, sees=sees), Rows(context, len(path))
    caches, queries = setup(shape, [tree])
    want = attend(latent_tree_attention, shape, caches, [tree], queries, words=2)[0][path]
    rows = queries[0].rows(path)
    (whole,) = attend(latent_tree_attention, shape, caches, [chain], [rows])
    assert torch.equal(whole, want)
    as_tree = replace(chain, sees=[range(i + 1) for i in range(len(path))])
    (chained,) = attend(latent_tree_attention, shape, caches, [as_tree], [rows])
    assert torch.equal(chained, want)
    for i in range(len(path)):
        one = [Rows(context + i, 1)], [rows.rows(slice(i, i + 1))]
        (got,) = attend(latent_tree_attention, shape, caches, *one)
        assert torch.equal(got, want[i : i + 1])


@pytest.mark.parametrize("chunk", [1, 50, 64])
def test_chunked_prefill_equals_whole(chunk: int) -> None:
    shape, whole = Shape(6, 48, 16), Rows(0, 150)
    caches, queries = setup(shape, [whole])
    want = attend(latent_tree_attention, shape, caches, [whole], queries)[0]
    got = []
    for start in range(0, 150, chunk):
        part = queries[0].rows(slice(start, start + chunk))
        rows = Rows(start, len(part.tensors[0]))
        got += attend(latent_tree_attention, shape, caches, [rows], [part])
    assert torch.equal(torch.cat(got), want)


def test_block_size_and_threads_do_not_change_bits() -> None:
    shape, requests = Shape(14, 64, 32, torch.bfloat16), [Rows(100, 30), TREE, Rows(700, 1)]
    results, threads = [], torch.get_num_threads()
    try:
        for block_size, count in ((16, 1), (16, 2), (16, 3), (1, 2), (48, 1)):
            torch.set_num_threads(count)
            caches, queries = setup(shape, requests, block_size)
            results.append(
                torch.cat(attend(latent_tree_attention, shape, caches, requests, queries))
            )
    finally:
        torch.set_num_threads(threads)
    for result in results[1:]:
        assert torch.equal(result, results[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(3, 20, 24), (16, 32, 64), (2, 7, 5)])
def test_head_products(isa: str, dtype: torch.dtype, sizes: tuple[int, int, int]) -> None:
    heads, inputs, outputs = sizes
    x = random((101, heads, inputs + 3), dtype, 1)[..., 3:]  # a view, as of fused projections
    weight = random((heads, inputs, outputs), dtype, 2)
    want = head_products_reference(x, weight)
    got = head_products(x, weight)
    torch.testing.assert_close(got, want, rtol=TOLERANCE[dtype], atol=8 * TOLERANCE[dtype])
    for first, last in ((0, 1), (3, 50), (100, 101)):
        assert torch.equal(head_products(x[first:last], weight), got[first:last])


# -- the rest ----------------------------------------------------------------------------------


def test_refuses_what_does_not_fit() -> None:
    shape, op = Shape(), latent_tree_attention
    caches, queries = setup(shape, [Rows(20, 5)])
    with pytest.raises(ValueError, match="reaches cache position 4004, but its block table of 2"):
        attend(op, shape, caches, [Rows(4000, 5, offsets=[-3999] * 5)], queries)
    caches.tables[0, 1] = -1
    with pytest.raises(ValueError, match="sees cache position 16 in block -1"):
        attend(op, shape, caches, [Rows(20, 5, offsets=[-20] * 5)], queries)
    with pytest.raises(RuntimeError, match="weight must have shape"):
        head_products(torch.zeros(2, 3, 4), torch.zeros(3, 5, 6))


def test_opcheck() -> None:
    shape, requests = Shape(), [TREE, Rows(3, 2)]
    caches, queries = setup(shape, requests)
    for cache in (caches.latents, caches.keys):
        cache.nan_to_num_(0.0)
    attend(latent_tree_attention, shape, caches, requests, queries, validate=True)
    x, weight = torch.ones(2, 3, 4), torch.ones(3, 4, 5)
    torch.library.opcheck(torch.ops.trtspec.head_products.default, (x, weight))
