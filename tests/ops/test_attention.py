"""paged_tree_attention against its reference, and its bitwise promises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from trtspec.ops import paged_tree_attention, paged_tree_attention_reference

from .attention_calls import Cache, Model, Rows, attend, random_rows, setup_call
from .each_isa import each_isa

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float16: 1e-3}


isa = each_isa("generic", "avx2", "avx512", "avx512_bf16")


TREE = Rows(
    context=37,
    count=6,
    sees=[[0], [0, 1], [0, 2], [0, 1, 3], [0, 2, 4], [0, 1, 3, 5]],
    depths=[0, 1, 1, 2, 2, 3],
)
CASES = {
    "decode": [Rows(70, 1)],
    "prefill": [Rows(0, 75)],
    "chunk": [Rows(61, 20)],
    "tree": [TREE],
    "empty tree row": [replace(TREE, context=0, sees=[[], *list(TREE.sees or ())[1:]])],
    "mixed": [Rows(5, 1), TREE, Rows(0, 9), Rows(130, 7, padding=3), replace(TREE, context=0)],
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(4, 4, 16), (4, 2, 24), (8, 1, 64), (6, 2, 20)])
@pytest.mark.parametrize(("window", "block_size"), [(0, 1), (0, 16), (11, 24)])
@pytest.mark.parametrize("case", CASES)
def test_equals_reference(
    dtype: torch.dtype,
    heads: tuple[int, int, int],
    window: int,
    block_size: int,
    case: str,
) -> None:
    model = Model(*heads, dtype=dtype, sliding_window=window)
    check_equals_reference(model, CASES[case], block_size)


def check_equals_reference(
    model: Model, requests: Sequence[Rows], block_size: int, words: int = 1
) -> None:
    caches, blocks, qkv = setup_call(model, requests, block_size)
    got = attend(paged_tree_attention, caches[0], blocks, requests, qkv, words=words, extra_rows=2)
    want = attend(
        paged_tree_attention_reference, caches[1], blocks, requests, qkv, words=words, extra_rows=2
    )
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=TOLERANCE[model.dtype], atol=TOLERANCE[model.dtype])
    for a, b in ((caches[0].k, caches[1].k), (caches[0].v, caches[1].v)):
        assert torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(4, 2, 24), (8, 2, 128), (7, 1, 80)])
def test_every_instruction_set(isa: str, dtype: torch.dtype, heads: tuple[int, int, int]) -> None:
    check_equals_reference(Model(*heads, dtype=dtype), CASES["mixed"], 16)
    check_equals_reference(Model(*heads, dtype=dtype, sliding_window=9), CASES["mixed"], 16)
    capped = Model(*heads, dtype=dtype, sliding_window=9, soft_cap=0.7)
    check_equals_reference(capped, CASES["mixed"], 16)
    sinks = Model(*heads, dtype=dtype, sliding_window=9, sinks=True)
    check_equals_reference(sinks, CASES["mixed"], 16)


def test_tree_of_several_words() -> None:
    """Bits 63, 64 and beyond, at every alignment to the tiles of 64 keys."""
    generator = torch.Generator().manual_seed(0)
    for context in (0, 1, 63, 64, 100):
        sees = [
            sorted({0, 63, i, *torch.randint(0, i + 1, (9,), generator=generator).tolist()})
            for i in range(150)
        ]
        requests = [Rows(context, 150, sees=sees)]
        check_equals_reference(Model(head_dim=32), requests, 16, words=3)


def test_mask_reaches_rows_of_an_earlier_call() -> None:
    """The depths of a rollout: a later call sees what earlier ones wrote beyond the context."""
    model = Model()
    whole = Rows(40, 4, sees=[[0], [0, 1], [0, 2], [0, 2, 3]])
    caches, blocks, qkv = setup_call(model, [whole], 16)
    want = attend(paged_tree_attention, caches[0], blocks, [whole], qkv)[0]
    first = Rows(40, 1, sees=[[0]])
    second = Rows(40, 2, sees=[[0, 1], [0, 2]], offsets=[1, 2])
    third = Rows(40, 1, sees=[[0, 2, 3]], offsets=[3])
    got, start = [], 0
    for rows in (first, second, third):
        part = tuple(x[start : start + rows.count] for x in qkv[0])
        got += attend(paged_tree_attention, caches[1], blocks, [rows], [part])  # type: ignore[list-item]
        start += rows.count
    assert torch.equal(torch.cat(got), want)


# -- bitwise promises --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [0, 50])
def test_a_request_alone_equals_it_in_a_batch(isa: str, dtype: torch.dtype, window: int) -> None:
    model = Model(8, 2, 64, dtype, window)
    requests = [Rows(5, 1), TREE, Rows(0, 90), Rows(130, 7), replace(TREE, context=200)]
    caches, blocks, qkv = setup_call(model, requests, 16)
    batch = attend(paged_tree_attention, caches[0], blocks, requests, qkv)
    for i, rows in enumerate(requests):
        alone = attend(paged_tree_attention, caches[1], [blocks[i]], [rows], [qkv[i]])[0]
        assert torch.equal(alone, batch[i])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(8, 2, 64), (3, 3, 40), (32, 8, 128)])
def test_chain_as_tree_equals_causal_equals_one_by_one(
    isa: str, dtype: torch.dtype, heads: tuple[int, int, int]
) -> None:
    model = Model(*heads, dtype=dtype)
    for context in (0, 30, 61, 130):
        causal = Rows(context, 9)
        tree = Rows(context, 9, sees=[range(i + 1) for i in range(9)])
        caches, blocks, qkv = setup_call(model, [causal], 16)
        want = attend(paged_tree_attention, caches[0], blocks, [causal], qkv)[0]
        assert torch.equal(attend(paged_tree_attention, caches[0], blocks, [tree], qkv)[0], want)
        for i in range(9):
            row = tuple(x[i : i + 1] for x in qkv[0])
            got = attend(paged_tree_attention, caches[1], blocks, [Rows(context + i, 1)], [row])[0]  # type: ignore[list-item]
            assert torch.equal(got, want[i : i + 1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("context", [0, 3, 59, 128])
def test_scattered_path_equals_chain(isa: str, dtype: torch.dtype, context: int) -> None:
    """Nodes of a path among 80 other nodes, and the same nodes as a chain."""
    model = Model(8, 2, 64, dtype)
    path = [0, 7, 20, 63, 64, 79]  # rows of the tree
    sees: list[list[int]] = [[0]] * 80
    for i in range(1, 80):
        sees[i] = [0, i]
    for depth, node in enumerate(path):
        sees[node] = path[: depth + 1]
    tree = Rows(context, 80, sees=sees)
    caches, blocks, qkv = setup_call(model, [tree], 16)
    want = attend(paged_tree_attention, caches[0], blocks, [tree], qkv, words=2)[0][path]
    chain = Rows(context, len(path))
    part = tuple(x[path] for x in qkv[0])
    got = attend(paged_tree_attention, caches[1], blocks, [chain], [part])[0]  # type: ignore[list-item]
    assert torch.equal(got, want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [0, 33])
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunked_prefill_equals_whole(
    isa: str, dtype: torch.dtype, window: int, chunk: int
) -> None:
    model = Model(8, 2, 64, dtype, window)
    whole = Rows(0, 150)
    caches, blocks, qkv = setup_call(model, [whole], 16)
    want = attend(paged_tree_attention, caches[0], blocks, [whole], qkv)[0]
    got = []
    for start in range(0, 150, chunk):
        part = tuple(x[start : start + chunk] for x in qkv[0])
        rows = Rows(start, len(part[0]))
        got += attend(paged_tree_attention, caches[1], blocks, [rows], [part])  # type: ignore[list-item]
    assert torch.equal(torch.cat(got), want)


def test_block_size_and_threads_do_not_change_bits() -> None:
    model = Model(8, 2, 64, torch.bfloat16)
    requests = [Rows(100, 30), TREE]
    results = []
    threads = torch.get_num_threads()
    try:
        for block_size, count in ((16, 1), (16, 2), (16, 3), (1, 2), (32, 2), (48, 1)):
            torch.set_num_threads(count)
            caches, blocks, qkv = setup_call(model, requests, block_size)
            out = attend(paged_tree_attention, caches[0], blocks, requests, qkv)
            results.append(torch.cat(out))
    finally:
        torch.set_num_threads(threads)
    for result in results[1:]:
        assert torch.equal(result, results[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [0, 300])
def test_pieces_of_keys_may_be_shared(isa: str, dtype: torch.dtype, window: int) -> None:
    """Contexts longer than a piece of 256 keys, by more threads than kv heads: the bits of one
    thread, which has all pieces; of a row alone, of a tree's path and of a chain alike, on both
    sides of a piece's end; sinks, where windows are, count once for all pieces."""
    model = Model(6, 2, 32, dtype, window, sinks=window > 0)
    threads = torch.get_num_threads()
    try:
        for context in (253, 511, 900):
            path = [0, 1, 3, 4, 6]
            sees = [[n for n in path if n < i] + [i] for i in range(8)]
            depths = [len(seen) - 1 for seen in sees]
            tree = Rows(context, 8, sees=sees, depths=depths)
            padded = Rows(context, 3, padding=1)
            caches, blocks, qkv = setup_call(model, [tree, padded], 32)
            results = []
            for count in (1, 2, 3, 7):
                torch.set_num_threads(count)
                out = attend(paged_tree_attention, caches[0], blocks, [tree, padded], qkv)
                results.append(torch.cat(out))
                assert torch.equal(results[0], results[-1])
                part = tuple(x[path] for x in qkv[0])
                chain = Rows(context, len(path))
                alone = attend(paged_tree_attention, caches[1], blocks[:1], [chain], [part])[0]  # type: ignore[list-item]
                assert torch.equal(alone, out[0][path])
                last = tuple(x[:1] for x in qkv[1])
                row = attend(
                    paged_tree_attention, caches[1], blocks[1:], [Rows(context, 1)], [last]
                )  # type: ignore[list-item]
                assert torch.equal(row[0], out[1][:1])
            check_equals_reference(model, [tree, padded], 32)
    finally:
        torch.set_num_threads(threads)


def test_fused_instruction_sets_agree() -> None:
    model = Model(8, 2, 64, torch.float32)
    results = []
    before = torch.ops.trtspec._get_isa()
    try:
        for name in ("avx2", "avx512"):
            torch.ops.trtspec._set_isa(name)
            if torch.ops.trtspec._get_isa() != name:
                pytest.skip(f"this processor has no {name}")
            caches, blocks, qkv = setup_call(model, CASES["mixed"], 16)
            out = attend(paged_tree_attention, caches[0], blocks, CASES["mixed"], qkv)
            results.append(torch.cat(out))
    finally:
        torch.ops.trtspec._set_isa(before)
    assert torch.equal(results[0], results[1])


# -- the rest ----------------------------------------------------------------------------------


def test_views_of_a_fused_projection() -> None:
    model = Model()
    rows = Rows(20, 5)
    caches, blocks, qkv = setup_call(model, [rows], 16)
    want = attend(paged_tree_attention, caches[0], blocks, [rows], qkv)[0]
    fused = torch.cat([x.flatten(1) for x in qkv[0]], dim=1)
    q, k, v = fused.split([x.shape[1] * x.shape[2] for x in qkv[0]], dim=1)
    views = (q.view(5, 4, 16), k.view(5, 2, 16), v.view(5, 2, 16))
    assert torch.equal(attend(paged_tree_attention, caches[1], blocks, [rows], [views])[0], want)


def test_rows_without_keys_and_values_read_what_lies_there(isa: str) -> None:
    """As a later layer does that shares a cache: the same bits, and not a byte is written."""
    for model in (Model(), Model(8, 2, 64, torch.bfloat16, 33)):
        requests = CASES["mixed"]
        caches, blocks, qkv = setup_call(model, requests, 16)
        want = attend(paged_tree_attention, caches[0], blocks, requests, qkv)
        before = [cache.nan_to_num(7.0) for cache in (caches[0].k, caches[0].v)]
        queries = [(q, k[:0], v[:0]) for q, k, v in qkv]
        for op in (paged_tree_attention, paged_tree_attention_reference):
            got = attend(op, caches[0], blocks, requests, queries)
            if op is paged_tree_attention:
                assert all(map(torch.equal, got, want))
            else:
                torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
        after = [cache.nan_to_num(7.0) for cache in (caches[0].k, caches[0].v)]
        assert all(map(torch.equal, after, before))


def test_no_requests() -> None:
    model = Model()
    cache = Cache(model)
    empty = torch.zeros(0, dtype=torch.int32)
    out = paged_tree_attention(
        random_rows(model, 3, 4, 0),
        random_rows(model, 3, 2, 1),
        random_rows(model, 3, 2, 2),
        cache.k,
        cache.v,
        torch.zeros(3, dtype=torch.int64),
        torch.full((3,), -1),
        empty.view(0, 1),
        torch.zeros(1, dtype=torch.int32),
        empty,
        empty.bool(),
        torch.zeros(3, 1, dtype=torch.int64),
        1.0,
        0,
    )
    assert not out.any()


def test_refuses_what_does_not_fit() -> None:
    model = Model()
    caches, blocks, qkv = setup_call(model, [Rows(20, 5)], 16)
    op = paged_tree_attention
    with pytest.raises(ValueError, match="reaches cache position 4004, but its block table of 2"):
        attend(op, caches[0], [blocks[0][:2]], [Rows(4000, 5, offsets=[-3999] * 5)], qkv)
    with pytest.raises(ValueError, match="sees cache position 16 in block -1"):
        table = blocks[0].clone()
        table[1] = -1
        attend(op, caches[0], [table], [Rows(20, 5, offsets=[-20] * 5)], qkv)
    with pytest.raises(ValueError, match="is not in"):
        attend(op, caches[0], [blocks[0] + 1000], [Rows(20, 5)], qkv)
    q, k, v = qkv[0]
    with pytest.raises(RuntimeError, match="k must have shape"):
        attend(op, caches[0], blocks, [Rows(20, 5)], [(q, k[:4], v)])
    with pytest.raises(RuntimeError, match="k must be"):
        attend(op, caches[0], blocks, [Rows(20, 5)], [(q, k.double(), v)])
    with pytest.raises(RuntimeError, match="4 query heads are not a multiple of 3"):
        attend(op, caches[0], blocks, [Rows(20, 5)], [(q, k[:, :1].repeat(1, 3, 1), v)])


def test_opcheck() -> None:
    model = Model()
    caches, blocks, qkv = setup_call(model, [TREE, Rows(3, 2)], 16)
    for tensor in (caches[0].k, caches[0].v):
        tensor.nan_to_num_(0.0)
    attend(paged_tree_attention, caches[0], blocks, [TREE, Rows(3, 2)], qkv, validate=True)
