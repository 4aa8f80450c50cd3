"""mamba2 against its reference in float64, and its bitwise promises."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from trtspec.ops.mamba2 import UNLIMITED, mamba2, mamba2_reference
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


class Shape(NamedTuple):
    """Heads whose columns fill a vector, a block or neither, in one group and in several."""

    heads: int
    head_dim: int
    groups: int
    state_size: int
    limits: tuple[float, float] = UNLIMITED


SHAPES = [
    Shape(1, 1, 1, 1),
    Shape(6, 20, 2, 12),
    Shape(2, 150, 2, 5, (0.5, 1.25)),
    Shape(4, 64, 1, 128),
]


class Call(NamedTuple):
    xbc: Tensor
    dt: Tensor
    gate: Tensor
    a_log: Tensor
    dt_bias: Tensor
    skip: Tensor
    state: Tensor
    kept: Tensor


def setup(shape: Shape, count: int, dtype: torch.dtype) -> Call:
    inner = shape.heads * shape.head_dim
    width = inner + 2 * shape.groups * shape.state_size
    # Views, as of one product that gives all three.
    rows = noise(count, 2 * inner + shape.heads, seed=1, dtype=dtype)
    return Call(
        noise(count, width, seed=2, dtype=dtype),
        rows[:, inner : inner + shape.heads],
        rows[:, inner + shape.heads :],
        *(noise(shape.heads, seed=seed) for seed in (3, 4, 5)),
        noise(NUM_STATES, shape.heads, shape.state_size * shape.head_dim, seed=6),
        torch.zeros(count, 1, shape.heads, dtype=dtype),
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_equals_reference(isa: str, dtype: torch.dtype, case: str) -> None:
    walk = make_walk(CASES[case], EXTRA)
    for shape in SHAPES:
        call = setup(shape, len(walk.tree_mask), dtype)
        wide = Call(*(x.double() for x in call))
        got = mamba2(*call, walk, shape.groups, shape.limits)
        want = mamba2_reference(*wide, walk, shape.groups, shape.limits)
        near = NEAR[dtype] * max(1.0, want.std().item())  # sums of 128 products
        torch.testing.assert_close(got.double(), want, rtol=NEAR[dtype], atol=near)
        torch.testing.assert_close(call.state.double(), wide.state, rtol=1e-5, atol=1e-5)
        assert torch.equal(call.kept.double(), wide.kept)
        assert torch.equal(got[-EXTRA:], torch.zeros_like(got[-EXTRA:]))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("shape", SHAPES[1:3])
def test_a_row_depends_on_its_path_alone(isa: str, shape: Shape, case: str) -> None:
    made = setup(shape, len(make_walk(CASES[case], EXTRA).tree_mask), torch.float32)

    def call(brought: Sequence[Tensor], walk: StateWalk, buffers: Sequence[Tensor]) -> Tensor:
        constants = made.a_log, made.dt_bias, made.skip
        return mamba2(*brought, *constants, *buffers, walk, shape.groups, shape.limits)

    brought = [made.xbc, made.dt, made.gate]
    assert_rows_are_alone(
        call, brought, CASES[case], lambda: [made.state.clone(), made.kept.clone()]
    )


def test_threads_change_no_bit() -> None:
    walk, shape, before = make_walk(CASES["mixed"], EXTRA), Shape(12, 64, 2, 64), None
    threads = torch.get_num_threads()
    for count in (1, 2, 5):
        torch.set_num_threads(count)
        call = setup(shape, len(walk.tree_mask), torch.float32)
        found = mamba2(*call, walk, shape.groups), call.state
        assert before is None or all(map(torch.equal, found, before))
        before = found
    torch.set_num_threads(threads)


def test_accepted_rows_are_fed_once_more() -> None:
    shape = SHAPES[1]
    requests = [Rows(3, parents=(0, 0, 2, 3)), Rows(1, 2), Rows(0, parents=(0, 1))]
    call = setup(shape, 10, torch.float32)
    mamba2(*call, make_walk(requests), shape.groups)
    expected = call.state.clone()
    rows, starts = torch.tensor([2, 3, 8]), torch.tensor([0, 2, 3], dtype=torch.int32)

    def feed(at: Tensor, dt: Tensor, state: Tensor, walk: StateWalk) -> None:
        gate = torch.zeros_like(call.gate[at])
        again = call._replace(xbc=call.xbc[at], dt=dt, gate=gate, state=state)
        mamba2(*again, walk, shape.groups)

    for slot, own in ((3, torch.tensor([2, 3])), (0, torch.tensor([8]))):
        feed(own, call.dt[own], expected, make_walk([Rows(slot, len(own))]))
    walk = certain_rows(torch.tensor([3, 0], dtype=torch.int32), starts, rows)
    feed(rows, call.kept[rows].squeeze(1), call.state, walk)
    assert torch.equal(call.state, expected)


def test_great_time_steps() -> None:
    """A state that forgets everything, and one that forgets nothing and takes in nothing."""
    shape = Shape(2, 4, 1, 4)
    call = setup(shape, 2, torch.float32)
    call.dt[:] = torch.tensor([[90.0, -90.0]])
    wide = Call(*(x.double() for x in call))
    walk = make_walk([Rows(0, 2)])
    got = mamba2(*call, walk, shape.groups)
    want = mamba2_reference(*wide, walk, shape.groups)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(call.state.double(), wide.state, rtol=1e-5, atol=1e-5)


def test_refused() -> None:
    shape = SHAPES[1]
    call, walk = setup(shape, 3, torch.float32), make_walk([Rows(1, 3)])
    with pytest.raises(ValueError, match=r"state 9 of request 0 is not in \[-1, 7\)"):
        mamba2(*call, make_walk([Rows(9, 3)]), 2)
    with pytest.raises(RuntimeError, match="6 heads are no multiple of 4 groups"):
        mamba2(*call, walk, 4)
    with pytest.raises(RuntimeError, match="xbc must have shape"):
        mamba2(*call._replace(xbc=call.xbc[:, 1:]), walk, 2)
    with pytest.raises(RuntimeError, match="state must have shape"):
        mamba2(*call._replace(state=call.state[:, :, 1:]), walk, 2)
    with pytest.raises(RuntimeError, match="a_log must be Float"):
        mamba2(*call._replace(a_log=call.a_log.double()), walk, 2)


def test_export() -> None:
    args = (*setup(SHAPES[1], 3, torch.float32), *make_walk([Rows(1, parents=(0, 0))]))
    torch.library.opcheck(torch.ops.trtspec.mamba2.default, (*args, 2, 0.0, math.inf))
