"""The kernels that cuda-python launches on torch's tensors give what the CPU's ops give."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from trtspec.config.tree import TreeShape
from trtspec.ops import cuda_driver, cuda_ops
from trtspec.ops.acceptance import accept
from trtspec.ops.build_tree import expand_tree, keep_best, marginal_trees
from trtspec.ops.kv_compact import kv_compact
from trtspec.ops.logits_mask import MaskColumns, mask_logits
from trtspec.ops.sampling import COLUMN_DTYPES, draft_candidates, sample
from trtspec.ops.tree_mask import tree_mask
from trtspec.speculative.marginals import MarginalTree

from ..ops import tree_calls
from ..ops.test_tree_mask import LENGTH, random_call

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
    pytest.mark.skipif(not cuda_driver.is_available(), reason="no cuda-python or no NVRTC"),
]


def on_cuda(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.cuda() for tensor in tensors]


def sampling_rows(rows: int, vocab: int, noise: torch.Generator) -> tuple[Tensor, list[Tensor]]:
    """Random logits, and sampling values that differ from row to row."""
    logits = 4 * torch.randn(rows, vocab, generator=noise)
    columns = [torch.zeros(rows, dtype=kind) for kind in COLUMN_DTYPES]
    columns[0] = torch.arange(rows) % 3 * 0.5
    columns[1] = (torch.arange(rows) % 4 * 5).int()
    columns[2] = torch.where(torch.arange(rows) % 2 == 0, 1.0, 0.9)
    columns[4], columns[6] = torch.arange(rows) - 2, torch.arange(rows)
    return logits, columns


@pytest.mark.parametrize(("rows", "vocab"), [(1, 7), (5, 2049), (40, 32000)])
def test_sample(rows: int, vocab: int) -> None:
    noise = torch.Generator().manual_seed(rows)
    logits, columns = sampling_rows(rows, vocab, noise)
    found = cuda_ops.sample(*on_cuda([logits, *columns]))
    assert torch.equal(found.cpu(), sample(logits, *columns))


@pytest.mark.parametrize(("rows", "vocab"), [(1, 7), (5, 2049), (40, 32000)])
def test_mask_logits(rows: int, vocab: int) -> None:
    noise = torch.Generator().manual_seed(rows)
    logits = 4 * torch.randn(rows, vocab, generator=noise)
    places = torch.randint(rows * min(vocab, 50), (300,), generator=noise).sort().values
    values = torch.randn(300, generator=noise)
    values[::5] = -torch.inf
    allowed = torch.randint(-(2**31), 2**31, (rows, -(-vocab // 32)), generator=noise).int()
    at, ids = places // min(vocab, 50), places % min(vocab, 50)
    mask = MaskColumns(allowed, at, ids, values)
    found = logits.cuda()
    cuda_ops.mask_logits(found, *on_cuda([*mask]))  # type: ignore[list-item]
    mask_logits(logits, mask)
    assert torch.equal(found.cpu(), logits)


@pytest.mark.parametrize(("rows", "vocab", "k"), [(1, 7, 4), (5, 2049, 8), (40, 32000, 4)])
@pytest.mark.parametrize("is_mapped", [False, True])
def test_draft_candidates(rows: int, vocab: int, k: int, is_mapped: bool) -> None:
    noise = torch.Generator().manual_seed(rows)
    logits, columns = sampling_rows(rows, vocab, noise)
    mapped = [torch.randperm(4 * vocab, generator=noise)[:vocab]] if is_mapped else []
    on_device = on_cuda([logits, *columns, *mapped])
    ids, logprobs = cuda_ops.draft_candidates(*on_device, *[None][: not is_mapped], k)
    expected = draft_candidates(logits, *columns, mapped[0] if mapped else None, k)
    assert torch.equal(ids.cpu(), expected[0])
    torch.testing.assert_close(logprobs.cpu(), expected[1], rtol=1e-5, atol=1e-5)


def test_accept() -> None:
    rng = random.Random(4)
    counts = [rng.randint(1, 40) for _ in range(9)]
    starts = [sum(counts[:i]) for i in range(len(counts) + 1)]
    total = starts[-1]
    sampled = torch.tensor([rng.randrange(3) for _ in range(total)])
    tokens = torch.tensor([rng.randrange(3) for _ in range(total)])
    above = [rng.randrange(row) if row else -1 for count in counts for row in range(count)]
    given = [sampled, tokens, torch.tensor(above).int(), torch.tensor(starts).int()]
    walked, emitted = accept(*given)
    rows, count = (x.cpu() for x in cuda_ops.accept(*on_cuda(given)))
    assert torch.equal(count, emitted) and (emitted > 2).any()
    assert torch.equal(rows[:, : walked.shape[1]], walked)


@pytest.mark.parametrize("is_static", [False, True])
def test_growth(is_static: bool) -> None:
    case = (3, 4, 5, 31), is_static, 6
    launched = tree_calls.by_schema(cuda_ops.expand_tree, cuda_ops.keep_best)
    tree_calls.assert_same(
        tree_calls.grow(*launched, *case, "cuda"), tree_calls.grow(expand_tree, keep_best, *case)
    )


def test_marginal_trees() -> None:
    arguments = tree_calls.marginals(MarginalTree(TreeShape(4, 5, 60)), 5, 3, 1)
    found = cuda_ops.marginal_trees(*on_cuda(arguments[:5]), *arguments[5:])
    tree_calls.assert_same(found, marginal_trees(*arguments))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_kv_compact(dtype: torch.dtype) -> None:
    caches = [torch.randn(6, 16, 2, 24).to(dtype) for _ in range(4)]
    source, wanted = torch.tensor([9, 14, 40, -1]), torch.tensor([8, 9, 39, 3])
    moved = on_cuda(caches)
    cuda_ops.kv_compact(moved, source.cuda(), wanted.cuda())
    kv_compact(caches, source, wanted)
    for found, expected in zip(moved, caches, strict=True):
        assert torch.equal(found.cpu(), expected)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.bfloat16, torch.float16])
def test_tree_mask(seed: int, dtype: torch.dtype) -> None:
    call = random_call(random.Random(seed))
    sizes = {"width": 5, "length": LENGTH, "sliding_window": seed % 2 * 7}
    on_device = {name: tensor.cuda() for name, tensor in call.items()}
    found = tree_mask(**on_device, **sizes, dtype=dtype)
    assert torch.equal(found.cpu(), tree_mask(**call, **sizes, dtype=dtype))
