"""causal_conv against its reference, and its bitwise promises."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from trtspec.ops.causal_conv import causal_conv, causal_conv_reference
from trtspec.ops.state_walk import StateWalk, certain_rows

from .each_isa import each_isa
from .state_calls import (
    CASES,
    DTYPES,
    EXTRA,
    NEAR,
    NUM_STATES,
    Rows,
    assert_rows_are_alone,
    make_walk,
    noise,
)

isa = each_isa("generic", "avx2", "avx512")
SIZES = [(1, 2), (37, 4), (600, 3), (16, 1)]


def setup(channels: int, width: int, count: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    x = noise(count, channels, seed=1, dtype=dtype)
    weight, bias = (noise(*s, seed=2, dtype=dtype) for s in ((width, channels), (channels,)))
    tail = noise(NUM_STATES, width - 1, channels, seed=3, dtype=dtype)
    return x, weight, bias, tail, torch.zeros(count, 1, channels, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_equals_reference(isa: str, dtype: torch.dtype, case: str) -> None:
    walk = make_walk(CASES[case], EXTRA)
    for channels, width in SIZES:
        x, weight, bias, tail, kept = setup(channels, width, len(walk.tree_mask), dtype)
        for given in (bias, None):
            own, theirs = (tail.clone(), kept.clone()), (tail.double(), kept.double())
            got = causal_conv(x, weight, given, *own, walk)
            wide = None if given is None else given.double()
            want = causal_conv_reference(x.double(), weight.double(), wide, *theirs, walk)
            torch.testing.assert_close(got.double(), want, rtol=NEAR[dtype], atol=NEAR[dtype])
            for ours, other in zip(own, theirs, strict=True):
                assert torch.equal(ours.double(), other)
            assert torch.equal(got[-EXTRA:], torch.zeros_like(got[-EXTRA:]))


@pytest.mark.parametrize("case", CASES)
def test_a_row_depends_on_its_path_alone(isa: str, case: str) -> None:
    count = len(make_walk(CASES[case], EXTRA).tree_mask)
    x, weight, bias, tail, kept = setup(300, 4, count, torch.float32)

    def call(brought: Sequence[Tensor], walk: StateWalk, buffers: Sequence[Tensor]) -> Tensor:
        return causal_conv(brought[0], weight, bias, *buffers, walk)

    assert_rows_are_alone(call, [x], CASES[case], lambda: [tail.clone(), kept.clone()])


def test_accepted_rows_are_fed_once_more() -> None:
    requests = [Rows(3, parents=(0, 0, 2, 3)), Rows(1, 2), Rows(0, parents=(0, 1))]
    x, weight, bias, tail, kept = setup(37, 4, 10, torch.float32)
    causal_conv(x, weight, bias, tail, kept, make_walk(requests))
    expected = tail.clone()
    rows, starts = torch.tensor([2, 3, 8]), torch.tensor([0, 2, 3], dtype=torch.int32)
    for slot, own in ((3, [2, 3]), (0, [8])):
        walk = make_walk([Rows(slot, len(own))])
        causal_conv(x[own], weight, bias, expected, kept.clone(), walk)
    again = certain_rows(torch.tensor([3, 0], dtype=torch.int32), starts, rows)
    causal_conv(kept[rows].squeeze(1), weight, bias, tail, kept, again)
    assert torch.equal(tail, expected)


def test_refused() -> None:
    x, weight, bias, tail, kept = setup(8, 4, 3, torch.float32)
    for requests, message in (
        ([Rows(7), Rows(1), Rows(2)], r"state 7 of request 0 is not in \[-1, 7\)"),
        ([Rows(1), Rows(1), Rows(2)], "two requests have state 1"),
    ):
        with pytest.raises(ValueError, match=message):
            causal_conv(x, weight, bias, tail, kept, make_walk(requests))
    walk = make_walk([Rows(1, parents=(0, 0))])
    with pytest.raises(ValueError, match="row 1 follows no row of its tree, that of request 0"):
        blind = walk._replace(tree_mask=torch.zeros_like(walk.tree_mask))
        causal_conv(x, weight, bias, tail, kept, blind)
    with pytest.raises(ValueError, match="row 2 may be rejected, but only 2 rows are kept"):
        causal_conv(x, weight, bias, tail, kept[:2], walk)
    with pytest.raises(RuntimeError, match="tail must have shape"):
        causal_conv(x, weight, bias, tail[:, :2], kept, walk)
    with pytest.raises(RuntimeError, match="weight must be Float"):
        causal_conv(x, weight.double(), bias, tail, kept, walk)


def test_export() -> None:
    x, weight, bias, tail, kept = setup(8, 4, 3, torch.float32)
    args = (x, weight, bias, tail, kept, *make_walk([Rows(1, parents=(0, 0))]))
    torch.library.opcheck(torch.ops.trtspec.causal_conv.default, args)
