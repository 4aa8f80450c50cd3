"""The ops between engines hand kernels the memory, sizes and order that these want: here kernels
are the CPU's ops, over the pointers that they are given."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch
from torch import Tensor

from trtspec.config.tree import TreeShape
from trtspec.ops import cuda_driver, cuda_ops, native
from trtspec.ops import tree_mask as masks
from trtspec.ops.acceptance import accept
from trtspec.ops.build_tree import expand_tree, keep_best, marginal_trees
from trtspec.ops.cuda_params import (
    AcceptParams,
    KeptTreeParams,
    LogitsMaskParams,
    MarginalTreesParams,
    MaskElement,
    SampleParams,
    TreeBeamParams,
    TreeChildrenParams,
    TreeMaskParams,
    TreePoolParams,
)
from trtspec.ops.cuda_sampling import candidates_workspace, sample_workspace
from trtspec.ops.cuda_trees import marginal_trees_workspace
from trtspec.ops.logits_mask import MaskColumns, mask_logits
from trtspec.ops.sampling import COLUMN_DTYPES, draft_candidates, sample
from trtspec.speculative.marginals import MarginalTree

from .tree_calls import assert_same, by_schema, grow, marginals

STREAM = 7


def at(pointer: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """The tensor that lies there."""
    count = torch.Size(shape).numel() * dtype.itemsize
    memory = (ctypes.c_char * count).from_address(pointer)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def columns_at(params: SampleParams, rows: int) -> list[Tensor]:
    names = [name for name, _ in SampleParams._fields_]
    return [
        at(getattr(params, name), (rows,), kind)
        for name, kind in zip(names, COLUMN_DTYPES, strict=True)
    ]


def grown_at(pool: TreePoolParams, children: TreeChildrenParams) -> list[Any]:
    """What the ops that grow trees take first."""
    pooled, lanes = (pool.requests, pool.size), (pool.requests, children.lanes)
    rows = (pool.requests * children.lanes, children.branching)
    return [
        at(pool.tokens, pooled, torch.int64),
        at(pool.parents, pooled, torch.int32),
        at(pool.scores, pooled, torch.float32),
        children.begin,
        at(children.tokens, rows, torch.int64),
        at(children.gains, rows, torch.float32),
        at(children.above, lanes, torch.int32) if children.above else None,
    ]


class HostKernels:
    """Stands in for `CudaKernels`."""

    def __init__(self) -> None:
        self.moved: list[tuple[int, int]] = []

    def sample(
        self,
        logits: int,
        rows: int,
        vocab: int,
        params: SampleParams,
        ids: int,
        workspace: int,
        stream: int,
    ) -> None:
        assert stream == STREAM
        at(workspace, (sample_workspace(rows, vocab),), torch.uint8).fill_(0xFF)
        found = sample(at(logits, (rows, vocab), torch.float32), *columns_at(params, rows))
        at(ids, (rows,), torch.int64).copy_(found)

    def mask_logits(
        self, logits: int, rows: int, vocab: int, mask: LogitsMaskParams, stream: int
    ) -> None:
        assert stream == STREAM
        count = mask.num_biases
        columns = MaskColumns(
            at(mask.allowed, (rows, mask.words), torch.int32) if mask.allowed else None,
            at(mask.bias_rows, (count,), torch.int64) if count else None,
            at(mask.bias_ids, (count,), torch.int64) if count else None,
            at(mask.bias_values, (count,), torch.float32) if count else None,
        )
        mask_logits(at(logits, (rows, vocab), torch.float32), columns)

    def draft_candidates(
        self,
        logits: int,
        rows: int,
        vocab: int,
        params: SampleParams,
        token_map: int | None,
        k: int,
        ids: int,
        logprobs: int,
        workspace: int,
        stream: int,
    ) -> None:
        assert stream == STREAM
        at(workspace, (candidates_workspace(rows, vocab, k),), torch.uint8).fill_(0xFF)
        mapped = None if token_map is None else at(token_map, (vocab,), torch.int64)
        found = draft_candidates(
            at(logits, (rows, vocab), torch.float32), *columns_at(params, rows), mapped, k
        )
        at(ids, (rows, k), torch.int64).copy_(found[0])
        at(logprobs, (rows, k), torch.float32).copy_(found[1])

    def accept(self, params: AcceptParams, stream: int) -> None:
        assert stream == STREAM and params.emitted is None and params.src_slots is None
        rows, requests = params.width, params.requests
        given = [at(getattr(params, name), (rows,), torch.int64) for name in ("sampled", "tokens")]
        given.append(at(params.parents, (rows,), torch.int32))
        walked, emitted = accept(*given, at(params.row_start, (requests + 1,), torch.int32))
        out = at(params.accepted_rows, (requests, rows), torch.int32).fill_(-1)
        out[:, : walked.shape[1]] = walked
        at(params.num_emitted, (requests,), torch.int32).copy_(emitted)

    def kv_compact(
        self, caches: list[int], row_bytes: int, source: int, wanted: int, pairs: int, stream: int
    ) -> None:
        assert stream == STREAM
        moves = [at(slots, (pairs,), torch.int64) for slots in (source, wanted)]
        for cache in caches:
            rows = at(cache, (8, row_bytes), torch.uint8)
            rows[moves[1]] = rows[moves[0]].clone()
            self.moved.append((row_bytes, pairs))

    def expand_tree(
        self,
        pool: TreePoolParams,
        children: TreeChildrenParams,
        beam: TreeBeamParams,
        stream: int,
    ) -> None:
        assert stream == STREAM
        requests, width, words = pool.requests, beam.width, beam.words
        above = (requests, children.lanes, words)
        found = torch.ops.trtspec.expand_tree(
            *grown_at(pool, children),
            width,
            at(beam.chosen, (width,), torch.int64) if beam.chosen else None,
            beam.first_bit,
            words,
            at(beam.seen_above, above, torch.int64) if beam.seen_above else None,
        )
        for name, tensor in zip(("tokens", "index", "lanes", "seen"), found, strict=True):
            at(getattr(beam, name), tuple(tensor.shape), tensor.dtype).copy_(tensor)

    def keep_best(
        self,
        pool: TreePoolParams,
        children: TreeChildrenParams,
        tree: KeptTreeParams,
        stream: int,
    ) -> None:
        assert stream == STREAM
        chosen = at(tree.chosen, (tree.nodes,), torch.int64) if tree.chosen else None
        found = torch.ops.trtspec.keep_best(*grown_at(pool, children), tree.nodes, chosen)
        for name, tensor in zip(("tokens", "parents", "scores"), found, strict=True):
            at(getattr(tree, name), tuple(tensor.shape), tensor.dtype).copy_(tensor)

    def marginal_trees(
        self, params: MarginalTreesParams, candidates: int, workspace: int, stream: int
    ) -> None:
        assert stream == STREAM
        size = marginal_trees_workspace(params.requests, candidates)
        at(workspace, (size,), torch.uint8).fill_(0xFF)
        guesses = (params.requests, params.depths, params.count)
        found = marginal_trees(
            at(params.tokens, guesses, torch.int64),
            at(params.gains, guesses, torch.float32),
            at(params.starts, (params.depths + 1,), torch.int32),
            at(params.lanes, (candidates,), torch.int32),
            at(params.ranks, (candidates,), torch.int32),
            params.nodes,
            params.keep_all,
        )
        for name, tensor in zip(("tokens", "parents", "scores"), found, strict=True):
            at(getattr(params, f"out_{name}"), tuple(tensor.shape), tensor.dtype).copy_(tensor)

    def tree_mask(self, params: TreeMaskParams, stream: int) -> None:
        assert stream == STREAM
        requests, rows = params.requests, params.rows
        mask = masks.tree_mask(
            at(params.positions, (rows,), torch.int64),
            at(params.slot_mapping, (rows,), torch.int64),
            at(params.query_start, (requests + 1,), torch.int32),
            at(params.context_lens, (requests,), torch.int32),
            at(params.is_tree, (requests,), torch.bool),
            at(params.tree_mask, (rows, params.mask_words), torch.int64),
            width=params.width,
            length=params.length,
            sliding_window=params.sliding_window,
        )
        assert params.kind == MaskElement.boolean
        at(params.out, tuple(mask.shape), torch.bool).copy_(mask)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> HostKernels:
    stand_in = HostKernels()
    monkeypatch.setattr(cuda_ops, "kernels_on", lambda tensor: (stand_in, STREAM))
    return stand_in


def test_sample(kernels: HostKernels) -> None:
    noise = torch.Generator().manual_seed(1)
    logits = torch.randn(5, 301, generator=noise)
    columns = [torch.ones(5, dtype=kind) for kind in COLUMN_DTYPES]
    columns[1] = torch.tensor([0, 5, 0, 3, 1], dtype=torch.int32)
    columns[4], columns[6] = torch.arange(5), torch.arange(10)[::2]  # not contiguous
    assert torch.equal(cuda_ops.sample(logits, *columns), sample(logits, *columns))
    with pytest.raises(
        RuntimeError, match=r"sample: a tensor is torch.int64.* must be torch.int32"
    ):
        cuda_ops.sample(logits, columns[0], columns[4], *columns[2:])


@pytest.mark.parametrize("has_biases", [False, True])
@pytest.mark.parametrize("has_allowed", [False, True])
def test_mask_logits(kernels: HostKernels, has_allowed: bool, has_biases: bool) -> None:
    mask = MaskColumns()
    if has_allowed:
        mask = mask._replace(allowed=torch.tensor([[5, 1], [6, 1]], dtype=torch.int32).T)
    if has_biases:
        places = torch.tensor([[0, 3], [1, 2], [1, 2]]).unbind(1)  # not contiguous
        mask = MaskColumns(mask.allowed, *places, torch.tensor([1.0, 2.0, -torch.inf]))
    logits = torch.randn(2, 40, generator=torch.Generator().manual_seed(1))
    expected = logits.clone()
    mask_logits(expected, mask)
    cuda_ops.mask_logits(logits, *mask)
    assert torch.equal(logits, expected)
    with pytest.raises(RuntimeError, match="contiguous"):
        cuda_ops.mask_logits(logits.T, *mask)
    with pytest.raises(RuntimeError, match=r"mask_logits: a tensor is torch.int64.* torch.int32"):
        cuda_ops.mask_logits(logits, torch.zeros(2, 2, dtype=torch.int64))


@pytest.mark.parametrize("is_mapped", [False, True])
def test_draft_candidates(kernels: HostKernels, is_mapped: bool) -> None:
    noise = torch.Generator().manual_seed(1)
    logits = torch.randn(301, 5, generator=noise).T  # not contiguous
    columns = [torch.ones(5, dtype=kind) for kind in COLUMN_DTYPES]
    columns[1] = torch.tensor([0, 5, 0, 3, 1], dtype=torch.int32)
    token_map = torch.arange(602)[::2] if is_mapped else None
    found = cuda_ops.draft_candidates(logits, *columns, token_map, 4)
    expected = draft_candidates(logits, *columns, token_map, 4)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    with pytest.raises(RuntimeError, match=r"draft_candidates: a tensor is torch.int32"):
        cuda_ops.draft_candidates(logits, *columns, torch.arange(301).int(), 4)


def test_accept(kernels: HostKernels) -> None:
    sampled = torch.tensor([5, 6, 7, 8, 9])
    tokens = torch.tensor([0, 5, 6, 0, 8])
    parents = torch.tensor([-1, 0, 1, -1, 0], dtype=torch.int32)
    row_start = torch.tensor([0, 3, 5], dtype=torch.int32)
    rows, emitted = cuda_ops.accept(sampled, tokens, parents, row_start)
    walked, count = accept(sampled, tokens, parents, row_start)
    assert rows.shape == (2, 5) and torch.equal(rows[:, :3], walked)
    assert emitted.tolist() == count.tolist() == [3, 2]


def test_kv_compact(kernels: HostKernels) -> None:
    """Caches of several row sizes, each moved by rows of its own size."""
    narrow, wide = torch.arange(16.0).view(4, 2, 1, 2), torch.arange(24.0).view(2, 4, 1, 3)
    before = [cache.clone().view(8, -1) for cache in (narrow, wide)]
    cuda_ops.kv_compact([narrow, wide], torch.tensor([5, 7]), torch.tensor([1, 2]))
    for cache, old in zip((narrow, wide), before, strict=True):
        assert torch.equal(cache.view(8, -1)[[1, 2]], old[[5, 7]])
        assert torch.equal(cache.view(8, -1)[3:], old[3:])
    assert kernels.moved == [(8, 2), (12, 2)]
    with pytest.raises(RuntimeError, match="contiguous"):
        cuda_ops.kv_compact([wide.transpose(0, 1)], torch.tensor([5]), torch.tensor([1]))


@pytest.mark.parametrize("is_static", [False, True])
def test_growth(kernels: HostKernels, is_static: bool) -> None:
    case = (3, 4, 4, 20), is_static, 5
    found = grow(*by_schema(cuda_ops.expand_tree, cuda_ops.keep_best), *case)
    assert_same(found, grow(expand_tree, keep_best, *case))
    pool = torch.zeros(6, 2).long().T, torch.zeros(2, 6).int(), torch.zeros(2, 6)
    with pytest.raises(RuntimeError, match="keep_best: the pool must be contiguous"):
        cuda_ops.keep_best(*pool, 0, pool[0], pool[2], None, 3, None)


def test_marginal_trees(kernels: HostKernels) -> None:
    arguments = marginals(MarginalTree(TreeShape(4, 3, 12)), 3, 2, 1)
    assert_same(cuda_ops.marginal_trees(*arguments), marginal_trees(*arguments))


def test_tree_mask(kernels: HostKernels) -> None:
    arguments = (
        torch.tensor([3, 4, 9, 9]),
        torch.tensor([0, 1, 2, -1]),
        torch.tensor([0, 2, 4], dtype=torch.int32),
        torch.tensor([3, 8], dtype=torch.int32),
        torch.tensor([False, True]),
        torch.tensor([[0], [0], [5], [0]]),
    )
    found = masks._launch(arguments, 3, 20, 2, torch.bool)
    assert torch.equal(found, masks.tree_mask(*arguments, width=3, length=20, sliding_window=2))


def test_registered_where_they_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    register = cuda_ops.register_cuda_ops
    monkeypatch.setattr(cuda_ops, "_register", cuda_ops._register.__wrapped__)
    monkeypatch.setattr(
        torch.library, "impl", lambda op, kind, run: given.update({op: (kind, run)})
    )
    monkeypatch.setattr(native, "HAS_CUDA_OPS", False)
    monkeypatch.setattr(cuda_driver, "is_available", lambda: False)
    assert not register() and not given
    monkeypatch.setattr(native, "HAS_CUDA_OPS", True)
    assert register() and not given
    monkeypatch.setattr(native, "HAS_CUDA_OPS", False)
    monkeypatch.setattr(cuda_driver, "is_available", lambda: True)
    assert register()
    assert given == {
        f"trtspec::{name}": ("cuda", getattr(cuda_ops, name))
        for name in (
            *("mask_logits", "sample", "draft_candidates", "accept", "kv_compact"),
            *("expand_tree", "keep_best", "marginal_trees"),
        )
    }
