"""lora against its reference; that no other row changes a row's bits, and that only the adapters
of rows are read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from trtspec.ops import lora, lora_reference

from .each_isa import each_isa

isa = each_isa("generic", "avx2", "avx512")
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float16: 5e-3}
ADAPTERS = 4
INDEX = (2, -1, 0, 2, 2, -1, 0, 2)


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class Call:
    x: Tensor
    a: Tensor
    b: Tensor
    index: Tensor
    parts: tuple[int, ...]
    around: dict[str, Any]
    residual: Tensor | None = None
    out_dtype: torch.dtype | None = None

    @classmethod
    def make(
        cls,
        parts: tuple[int, ...],
        dtype: torch.dtype,
        rank: int = 5,
        depth: int = 90,
        index: tuple[int, ...] = INDEX,
    ) -> Call:
        wide = len(parts) * rank
        return cls(
            random(len(index), depth, seed=1).to(dtype),
            (random(ADAPTERS, depth, wide, seed=2) / depth**0.5).to(dtype),
            random(ADAPTERS, rank, sum(parts), seed=3).to(dtype),
            torch.tensor(index, dtype=torch.int32),
            parts,
            {},
            random(len(index), sum(parts), seed=4).to(dtype),
        )

    def run(self, rows: slice | Tensor = slice(None), op: Any = lora) -> Tensor:
        residual = None if self.residual is None else self.residual[rows]
        given = self.x[rows], self.a, self.b, self.index[rows], self.parts, self.out_dtype
        result: Tensor = op(*given, residual=residual, **self.around)
        return result

    def check(self) -> None:
        wanted = self.run(op=lora_reference)
        near = TOLERANCE[self.x.dtype]
        torch.testing.assert_close(self.run(), wanted, rtol=near, atol=near)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("parts", [(70,), (300, 33, 33), (64, 64)], ids=["o", "qkv", "gate_up"])
def test_equals_reference(isa: str, dtype: torch.dtype, parts: tuple[int, ...]) -> None:
    for rank in (1, 5, 16, 24):
        Call.make(parts, dtype, rank).check()


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_prologues_and_dtypes(isa: str, dtype: torch.dtype) -> None:
    call = Call.make((70,), dtype)
    replace(call, residual=None).check()
    norm = {"norm": random(90, seed=5).to(dtype), "eps": 1e-5}
    replace(call, around=norm).check()
    replace(call, x=random(len(INDEX), 180, seed=6).to(dtype), around={"gated": True}).check()
    wide = random(len(INDEX), 70, seed=7)
    replace(call, residual=wide, out_dtype=torch.float32).check()


def test_rows_without_an_adapter_keep_their_residual() -> None:
    call = Call.make((70,), torch.bfloat16)
    assert call.residual is not None
    bare = call.index < 0
    assert torch.equal(call.run()[bare], call.residual[bare])
    assert not replace(call, residual=None).run()[bare].any()
    none = replace(call, index=torch.full_like(call.index, -1))
    assert torch.equal(none.run(), call.residual)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_no_bit_depends_on_other_rows(isa: str, dtype: torch.dtype) -> None:
    """Alone, in other company, and in blocks of other sizes; also where threads share the work."""
    index = tuple(i % (ADAPTERS + 1) - 1 for i in range(260))
    call = Call.make((300, 33, 33), dtype, rank=16, depth=200, index=index)
    whole = call.run()
    for row in (0, 1, 48, 259):
        assert torch.equal(call.run(slice(row, row + 1))[0], whole[row])
    order = torch.randperm(len(index), generator=torch.Generator().manual_seed(8))
    assert torch.equal(call.run(order), whole[order])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert torch.equal(call.run(), whole)
    finally:
        torch.set_num_threads(threads)


def test_adapters_of_no_row_are_not_read() -> None:
    call = Call.make((70,), torch.float32)
    wanted = call.run()
    for unused in (1, 3):
        call.a[unused] = call.b[unused] = float("nan")
    assert torch.equal(call.run(), wanted)


def test_padding_of_a_lower_rank_adds_nothing() -> None:
    """As adapters of fewer ranks than there is room for lie in the buffers."""
    call = Call.make((40, 30), torch.float32, rank=3)
    wide = Call.make((40, 30), torch.float32, rank=8)
    a, b = torch.zeros_like(wide.a), torch.zeros_like(wide.b)
    a.view(ADAPTERS, -1, 2, 8)[..., :3] = call.a.view(ADAPTERS, -1, 2, 3)
    b[:, :3] = call.b
    torch.testing.assert_close(replace(wide, a=a, b=b, residual=call.residual).run(), call.run())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"index": torch.tensor([9] * 8, dtype=torch.int32)}, "row 0 has adapter 9, of 4"),
        ({"index": torch.tensor([-2] * 8, dtype=torch.int32)}, "row 0 has adapter -2, of 4"),
        ({"index": torch.zeros(7, dtype=torch.int32)}, "index must have shape"),
        ({"parts": (60,)}, "must sum to the 70 outputs"),
        ({"x": torch.zeros(8, 80)}, "x must have shape"),
        ({"b": torch.zeros(4, 6, 70)}, "a must have shape"),
        ({"residual": torch.zeros(8, 60)}, "residual must have shape"),
    ],
)
def test_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises((RuntimeError, ValueError), match=said):
        replace(Call.make((70,), torch.float32), **change).run()
