"""Staging: what arrives is what was sent, whatever the shapes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trtspec.backends.staging import HostRead, Staging, join, split, to_host

from .. import fake_cuda
from ..fake_cuda import can_fake, played_cuda

CPU = torch.device("cpu")
DTYPES = (torch.int64, torch.int32, torch.bool, torch.float32, torch.bfloat16)


def tensors(rows: int, seed: int = 0) -> list[Tensor]:
    noise = torch.Generator().manual_seed(seed)
    return [
        torch.randint(-9, 9, (rows,), generator=noise),
        torch.randn(rows, 3, generator=noise),
        torch.randint(2, (rows,), generator=noise).bool(),
        torch.randint(-9, 9, (rows + 1,), generator=noise, dtype=torch.int32),
        torch.randn(rows, 2, generator=noise).bfloat16(),
    ]


def assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype and torch.equal(one, other)
        assert one.data_ptr() % 16 == 0


@pytest.mark.parametrize("stable", [False, True])
def test_all_shapes_in_turn(stable: bool) -> None:
    staging = Staging(CPU, always=True)
    for i, rows in enumerate([3, 0, 900, 1, 3, 900]):
        sent = tensors(rows, i)
        assert_same(staging.to_device(sent, stable), sent)


def test_stable_memory_is_used_again_and_other_memory_is_not() -> None:
    staging = Staging(CPU, always=True)
    first = staging.to_device(tensors(5), stable=True)
    other = staging.to_device(tensors(6), stable=True)
    again = staging.to_device(tensors(5, 1), stable=True)
    assert [x.data_ptr() for x in first] == [x.data_ptr() for x in again]
    assert_same(first, tensors(5, 1))
    assert_same(other, tensors(6))
    kept = staging.to_device(tensors(5, 2))
    staging.to_device(tensors(5, 3))
    assert_same(kept, tensors(5, 2))
    assert_same(first, tensors(5, 1))


def test_nothing_is_copied_on_a_cpu() -> None:
    sent = tensors(4)
    for found in (Staging(CPU).to_device(sent, stable=True), to_host(sent)):
        assert [x.data_ptr() for x in found] == [x.data_ptr() for x in sent]


def test_join_and_split() -> None:
    sent = [torch.arange(5), torch.arange(6, dtype=torch.int32).view(2, 3)[:, 1:], torch.ones(3)]
    found = split(join(sent), sent)
    assert all(torch.equal(one, other) for one, other in zip(found, sent, strict=True))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(DTYPES), st.integers(0, 9), st.booleans()), max_size=9))
def test_parts_of_any_size_and_order_are_joined(
    parts: list[tuple[torch.dtype, int, bool]],
) -> None:
    """A view of larger elements may begin at their multiples alone, wherever the part before it
    ends."""
    noise = torch.Generator().manual_seed(len(parts))
    sent = [
        torch.randint(2, (count, 3) if is_wide else (count,), generator=noise).to(dtype)
        for dtype, count, is_wide in parts
    ] or [torch.zeros(0)]
    found = split(join(sent), sent)
    for one, other in zip(found, sent, strict=True):
        assert one.dtype == other.dtype and torch.equal(one, other)


needs_fake = pytest.mark.skipif(not can_fake(), reason="torch has CUDA itself")


@needs_fake
@pytest.mark.parametrize("stable", [False, True])
def test_the_host_waits_when_its_memory_is_all_under_way(stable: bool) -> None:
    with played_cuda():
        staging = Staging(fake_cuda.DEVICE)
        fake_cuda.waits.clear()
        waited = []
        for i, rows in enumerate([3, 3, 9, 3, 3, 3, 900, 3, 1]):
            found = staging.to_device(tensors(rows, i), stable)
            waited.append(len(fake_cuda.waits))
            assert_same([tensor.held for tensor in found], tensors(rows, i))
    assert waited == [0, 0, 0, 0, 1, 2, 3, 4, 5], "four copies are under way at most"


@needs_fake
def test_memory_that_is_written_while_a_copy_reads_it_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control of the test above."""
    monkeypatch.setattr(fake_cuda.Event, "synchronize", lambda event: None)
    with (
        pytest.raises(AssertionError, match="changed while a copy read it"),
        played_cuda(),
    ):
        staging = Staging(fake_cuda.DEVICE)
        for i in range(5):
            staging.to_device(tensors(3, i))


@needs_fake
@pytest.mark.parametrize("waits", [True, False])
def test_what_is_read_is_known_after_the_wait(waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was when the read began; without the wait it is not."""
    if not waits:
        monkeypatch.setattr(fake_cuda.Event, "synchronize", lambda event: None)
    with played_cuda():
        on_device = [tensor.cuda() for tensor in tensors(5)]
        fake_cuda.waits.clear()
        read = HostRead(on_device)
        for tensor in on_device:
            tensor.zero_()
        assert fake_cuda.waits == [], "beginning a read does not wait"
        found = read.wait()
        assert all(map(torch.equal, found, tensors(5))) == waits
        assert fake_cuda.waits == (["event"] if waits else [])


@needs_fake
@pytest.mark.parametrize("requests", range(1, 9))
def test_rows_of_a_draft_come_to_the_host(requests: int) -> None:
    """What a draft over slots reads on a device: numbers of 8, 4 and 1 bytes in turn."""
    rows = 3 * requests + 1
    sent = [
        *(torch.arange(rows), torch.arange(rows), torch.ones(rows, 1, dtype=torch.int64)),
        *(torch.arange(requests + 1).int(), torch.arange(requests).int()),
        *(torch.ones(requests).bool(), torch.arange(rows), torch.arange(requests)),
    ]
    with played_cuda():
        found = to_host([tensor.cuda() for tensor in sent])
    assert all(tensor.device.type == "cpu" for tensor in found)
    assert all(torch.equal(one, other) for one, other in zip(found, sent, strict=True))
