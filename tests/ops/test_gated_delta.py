"""gated_delta against its reference in float64, and its bitwise promises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from transformers.models.qwen3_next import modeling_qwen3_next

from trtspec.ops.gated_delta import gated_delta, gated_delta_reference
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
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int


SHAPES = [Shape(1, 1, 1, 1), Shape(2, 4, 12, 10), Shape(1, 3, 33, 70), Shape(2, 2, 128, 128)]


class Call(NamedTuple):
    qkv: Tensor
    gates: Tensor
    a_log: Tensor
    dt_bias: Tensor
    state: Tensor
    kept: Tensor


def setup(shape: Shape, count: int, dtype: torch.dtype) -> Call:
    heads = shape.value_heads
    width = 2 * shape.key_heads * shape.key_dim + heads * shape.value_dim
    return Call(
        noise(count, width, seed=1, dtype=dtype),
        noise(count, 2 * heads, seed=2, dtype=dtype),
        noise(heads, seed=3),
        noise(heads, seed=4),
        noise(NUM_STATES, heads, shape.key_dim * shape.value_dim, seed=5),
        torch.zeros(count, 1, 2 * heads, dtype=dtype),
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_equals_reference(isa: str, dtype: torch.dtype, case: str) -> None:
    walk = make_walk(CASES[case], EXTRA)
    for shape in SHAPES:
        call = setup(shape, len(walk.tree_mask), dtype)
        wide = Call(*(x.double() for x in call))
        tiled = shape.value_heads == 4
        got = gated_delta(*call, walk, shape.key_dim, tiled)
        want = gated_delta_reference(*wide, walk, shape.key_dim, tiled)
        torch.testing.assert_close(got.double(), want, rtol=NEAR[dtype], atol=NEAR[dtype])
        torch.testing.assert_close(call.state.double(), wide.state, rtol=1e-5, atol=1e-5)
        assert torch.equal(call.kept.double(), wide.kept)
        assert torch.equal(got[-EXTRA:], torch.zeros_like(got[-EXTRA:]))


@pytest.mark.parametrize("case", CASES)
def test_a_row_depends_on_its_path_alone(isa: str, case: str) -> None:
    count = len(make_walk(CASES[case], EXTRA).tree_mask)
    shape = Shape(2, 4, 20, 70)
    made = setup(shape, count, torch.float32)

    def call(brought: Sequence[Tensor], walk: StateWalk, buffers: Sequence[Tensor]) -> Tensor:
        qkv, gates = brought
        return gated_delta(qkv, gates, made.a_log, made.dt_bias, *buffers, walk, shape.key_dim)

    brought = [made.qkv, made.gates]
    assert_rows_are_alone(
        call, brought, CASES[case], lambda: [made.state.clone(), made.kept.clone()]
    )


def test_threads_change_no_bit() -> None:
    walk, shape, before = make_walk(CASES["mixed"], EXTRA), Shape(2, 8, 64, 64), None
    threads = torch.get_num_threads()
    for count in (1, 2, 5):
        torch.set_num_threads(count)
        call = setup(shape, len(walk.tree_mask), torch.float32)
        found = gated_delta(*call, walk, shape.key_dim), call.state
        assert before is None or all(map(torch.equal, found, before))
        before = found
    torch.set_num_threads(threads)


def test_accepted_rows_are_fed_once_more() -> None:
    shape = Shape(2, 4, 12, 10)
    requests = [Rows(3, parents=(0, 0, 2, 3)), Rows(1, 2), Rows(0, parents=(0, 1))]
    call = setup(shape, 10, torch.float32)
    gated_delta(*call, make_walk(requests), shape.key_dim)
    expected = call.state.clone()
    rows, starts = torch.tensor([2, 3, 8]), torch.tensor([0, 2, 3], dtype=torch.int32)

    def feed(at: Tensor, gates: Tensor, state: Tensor, walk: StateWalk) -> None:
        again = call._replace(qkv=call.qkv[at], gates=gates, state=state)
        gated_delta(*again, walk, shape.key_dim)

    for slot, own in ((3, torch.tensor([2, 3])), (0, torch.tensor([8]))):
        feed(own, call.gates[own], expected, make_walk([Rows(slot, len(own))]))
    walk = certain_rows(torch.tensor([3, 0], dtype=torch.int32), starts, rows)
    feed(rows, call.kept[rows].squeeze(1), call.state, walk)
    assert torch.equal(call.state, expected)


def test_great_gates() -> None:
    """A state that forgets everything, and one that forgets nothing."""
    shape = Shape(1, 2, 4, 4)
    call = setup(shape, 2, torch.float32)
    call.gates[:] = torch.tensor([[0.0, 0.0, 90.0, -90.0]])
    wide = Call(*(x.double() for x in call))
    walk = make_walk([Rows(0, 2)])
    got = gated_delta(*call, walk, shape.key_dim)
    torch.testing.assert_close(
        got.double(), gated_delta_reference(*wide, walk, shape.key_dim), rtol=1e-5, atol=1e-5
    )


def test_refused() -> None:
    shape = Shape(2, 4, 12, 10)
    call, walk = setup(shape, 3, torch.float32), make_walk([Rows(1, 3)])
    with pytest.raises(ValueError, match=r"state 9 of request 0 is not in \[-1, 7\)"):
        gated_delta(*call, make_walk([Rows(9, 3)]), shape.key_dim)
    with pytest.raises(RuntimeError, match="state must have heads of a multiple of key_dim 7"):
        gated_delta(*call, walk, 7)
    with pytest.raises(RuntimeError, match="qkv must have queries and keys of 12 elements"):
        gated_delta(*call._replace(qkv=call.qkv[:, 1:]), walk, shape.key_dim)
    with pytest.raises(RuntimeError, match="gates must have shape"):
        gated_delta(*call._replace(gates=call.gates[:, 1:]), walk, shape.key_dim)


def test_export() -> None:
    shape = Shape(2, 4, 12, 10)
    args = (*setup(shape, 3, torch.float32), *make_walk([Rows(1, parents=(0, 0))]), 12, True)
    torch.library.opcheck(torch.ops.trtspec.gated_delta.default, args)


@pytest.mark.parametrize(
    "rule", ["torch_recurrent_gated_delta_rule", "torch_chunk_gated_delta_rule"]
)
def test_is_the_rule_of_transformers(rule: str) -> None:
    """Over a prompt behind committed tokens: what it reads, and the state that it leaves."""
    shape, count = Shape(2, 6, 24, 40), 70
    call = setup(shape, count, torch.float32)
    heads, (q, k, v) = shape.value_heads, call.qkv.split([48, 48, 240], dim=1)
    b, a = call.gates.chunk(2, dim=1)
    theirs, state = getattr(modeling_qwen3_next, rule)(
        *(x.unflatten(1, (-1, size))[None] for x, size in ((q, 24), (k, 24), (v, 40))),
        g=(-call.a_log.exp() * torch.nn.functional.softplus(a + call.dt_bias))[None],
        beta=b.sigmoid()[None],
        initial_state=call.state[3].view(1, heads, 24, 40),
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    got = gated_delta(*call, make_walk([Rows(3, count)]), shape.key_dim)
    torch.testing.assert_close(got, theirs[0].flatten(1), rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(call.state[3], state[0].flatten(1), rtol=2e-5, atol=2e-5)
