"""kv_compact against its reference."""

from __future__ import annotations

import pytest
import torch

from trtspec.ops import kv_compact, kv_compact_reference


def make_caches(count: int, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    return [torch.randn(6, 4, 2, 8, generator=generator).to(dtype) for _ in range(count)]


def slots(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("src", "dst"),
    [
        ((), ()),
        ((5,), (3,)),
        ((7, 9, 10, 23), (5, 6, 7, 8)),  # a later source is an earlier destination
        ((1, 2, 3), (2, 3, 1)),  # a cycle
        ((-1, 4, 8), (2, -1, 9)),
        ((4, 4, 4), (4, 5, 6)),
    ],
)
def test_equals_reference(dtype: torch.dtype, src: tuple[int, ...], dst: tuple[int, ...]) -> None:
    caches = make_caches(3, dtype)
    wanted = [c.clone() for c in caches]
    kv_compact(caches, slots(*src), slots(*dst))
    kv_compact_reference(wanted, slots(*src), slots(*dst))
    for got, want in zip(caches, wanted, strict=True):
        assert torch.equal(got, want)


def test_caches_of_different_shapes() -> None:
    caches = [torch.randn(4, 4, 2, 8), torch.randn(2, 8, 1, 8).half(), torch.ones(4, 4, 2, 8)]
    caches[2] = torch.arange(256).view(4, 4, 2, 8).to(torch.int8)
    wanted = [c.clone() for c in caches]
    kv_compact_reference(wanted, slots(9, 3), slots(0, 1))
    kv_compact(caches, slots(9, 3), slots(0, 1))
    assert all(torch.equal(got, want) for got, want in zip(caches, wanted, strict=True))


def test_refuses_what_does_not_fit() -> None:
    caches = make_caches(1, torch.float32)
    with pytest.raises(ValueError, match=r"slot 24 of row 0 is not in \[-1, 24\)"):
        kv_compact(caches, slots(24), slots(0))
    with pytest.raises(ValueError, match="two rows move to slot 3"):
        kv_compact(caches, slots(1, 2), slots(3, 3))
    with pytest.raises(RuntimeError, match="not contiguous"):
        kv_compact([caches[0].transpose(0, 1)], slots(1), slots(3))


def test_opcheck() -> None:
    caches = make_caches(2, torch.float32)
    torch.library.opcheck(torch.ops.trtspec.kv_compact.default, (caches, slots(7, 9), slots(5, 6)))
