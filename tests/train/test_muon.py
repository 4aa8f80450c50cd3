"""The optimizer of matrices: torch's own, but in the products that are asked for."""

from __future__ import annotations

import pytest
import torch

from trtspec.train.muon import Muon, orthogonal

SHAPES = (24, 40), (40, 24), (16, 16)


def ends(optimizer: torch.optim.Optimizer, matrices: list[torch.nn.Parameter]) -> None:
    """Three steps over gradients of the same seed."""
    noise = torch.Generator().manual_seed(1)
    for step in range(3):
        for matrix in matrices:
            matrix.grad = torch.randn(matrix.shape, generator=noise)
        for group in optimizer.param_groups:
            group["lr"] = 0.02 / (1 + step)
        optimizer.step()


def drawn() -> list[torch.nn.Parameter]:
    noise = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(*shape, generator=noise)) for shape in SHAPES]


def test_in_bfloat16_it_is_torchs() -> None:
    ours, theirs = drawn(), drawn()
    ends(Muon(ours, 0.02, torch.bfloat16), ours)
    ends(
        torch.optim.Muon(theirs, lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"), theirs
    )
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_in_float32_it_differs_by_rounding_alone() -> None:
    ours, theirs = drawn(), drawn()
    ends(Muon(ours, 0.02, torch.float32), ours)
    ends(Muon(theirs, 0.02, torch.bfloat16), theirs)
    for before, a, b in zip(drawn(), ours, theirs, strict=True):
        assert not torch.equal(a, b)
        torch.testing.assert_close(a - before, b - before, atol=0.01, rtol=0.05)


@pytest.mark.parametrize("shape", SHAPES)
def test_directions_weigh_alike(shape: tuple[int, int]) -> None:
    """Of a matrix whose singular values lie between 1 and 30."""
    count = min(shape)
    noise = torch.Generator().manual_seed(0)
    left, right = (torch.linalg.qr(torch.randn(side, count, generator=noise)).Q for side in shape)
    matrix = left @ torch.diag(torch.linspace(1, 30, count)) @ right.T
    values = torch.linalg.svdvals(orthogonal(matrix))
    assert values.min() > 0.5
    assert values.max() < 1.5


def test_matrices_without_gradients_stay() -> None:
    (matrix, *_) = drawn()
    before = matrix.detach().clone()
    Muon([matrix], 0.02, torch.float32).step()
    assert torch.equal(matrix, before)
