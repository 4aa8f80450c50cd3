"""Collectives of ranks: threads here, which share memory as processes do."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from trtspec.errors import EngineError
from trtspec.ops.collectives import (
    RankGroup,
    all_gather,
    all_gather_reference,
    all_reduce,
    all_reduce_reference,
)
from trtspec.ops.nccl import DeviceGroup, new_store


@contextmanager
def shared_memory(ranks: int) -> Iterator[int]:
    memory = os.memfd_create("ranks")
    os.ftruncate(memory, RankGroup.memory_bytes(ranks))
    yield memory
    os.close(memory)


def on_ranks(ranks: int, call: Callable[[int, Tensor], Tensor]) -> list[Tensor]:
    """What ``call(rank, group)`` returns on each of so many ranks."""
    with shared_memory(ranks) as memory, ThreadPoolExecutor(ranks) as pool:
        groups = [RankGroup(memory, rank, ranks, patience=20) for rank in range(ranks)]
        running = [pool.submit(call, rank, group.tensor) for rank, group in enumerate(groups)]
        return [each.result() for each in running]


def parts(ranks: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    made = torch.Generator().manual_seed(3)
    return [torch.randn(shape, generator=made).to(dtype) for _ in range(ranks)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("ranks", "shape"),
    [(1, (3, 5)), (2, (1, 1)), (2, (7, 64)), (3, (5, 0)), (4, (9, 67)), (2, (300, 1100))],
)
def test_sums_are_taken_in_the_order_of_the_ranks(
    ranks: int, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    """To the bit, and on all ranks; (300, 1100) is more than a rank's place holds."""
    given = parts(ranks, shape, dtype)
    found = on_ranks(ranks, lambda rank, group: all_reduce(given[rank], group))
    for each in found:
        assert each.dtype == dtype
        assert torch.equal(each, all_reduce_reference(given))


def test_sums_of_a_row_depend_on_no_other_row() -> None:
    given = parts(3, (40, 70))
    whole = on_ranks(3, lambda rank, group: all_reduce(given[rank], group))[0]
    row = on_ranks(3, lambda rank, group: all_reduce(given[rank][11:12], group))[0]
    assert torch.equal(row[0], whole[11])


@pytest.mark.parametrize(
    ("ranks", "rows", "columns", "width"),
    [(1, 2, 5, 5), (2, 1, 102, 203), (4, 3, 51, 203), (3, 5, 4, 4), (2, 3, 200_000, 399_999)],
)
def test_columns_are_gathered_in_the_order_of_the_ranks(
    ranks: int, rows: int, columns: int, width: int
) -> None:
    given = parts(ranks, (rows, columns))
    found = on_ranks(ranks, lambda rank, group: all_gather(given[rank], group, width))
    for each in found:
        assert torch.equal(each, all_gather_reference(given, width))


def test_many_steps_stay_in_step() -> None:
    """Ranks that come early, now one and now another, read no step but their own."""

    def run(rank: int, group: Tensor) -> Tensor:
        found = []
        for step in range(300):
            if step % 50 == 7 * rank:
                time.sleep(0.01)
            found.append(all_reduce(torch.tensor([float(step * (rank + 1))]), group))
        return torch.cat(found)

    expected = torch.arange(300.0) * (1 + 2 + 3)
    assert all(torch.equal(each, expected) for each in on_ranks(3, run))


def test_an_end_reaches_a_rank_that_waits() -> None:
    with shared_memory(2) as memory, ThreadPoolExecutor(1) as pool:
        groups = [RankGroup(memory, rank, 2) for rank in range(2)]
        waiting = pool.submit(all_reduce, torch.ones(4), groups[0].tensor)
        groups[1].end()
        with pytest.raises(RuntimeError, match="the group of 2 ranks has ended"):
            waiting.result(20)
        with pytest.raises(RuntimeError, match="has ended"):
            all_gather(torch.ones(1, 2), groups[1].tensor, 4)


def test_a_rank_that_never_comes_is_named() -> None:
    with shared_memory(2) as memory:
        group = RankGroup(memory, 0, 2, patience=0.2)
        with pytest.raises(RuntimeError, match="rank 1 did not come to a step within"):
            all_reduce(torch.ones(4), group.tensor)


def test_a_network_without_ranks_is_refused() -> None:
    with pytest.raises(RuntimeError, match="opened without its ranks"):
        all_reduce(torch.ones(4), torch.zeros(1, 1, dtype=torch.int64))


def test_a_rank_that_is_none_is_refused() -> None:
    with shared_memory(2) as memory, pytest.raises(RuntimeError, match="rank 2 of 2 ranks"):
        RankGroup(memory, 2, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gpus_add_in_the_same_order(dtype: torch.dtype) -> None:
    """As far as a machine without them can tell: over another kind of process group, of threads."""
    given, store = parts(3, (5, 8), dtype), dist.HashStore()
    logits = [x.float() for x in given]

    def run(rank: int) -> tuple[Tensor, Tensor]:
        exchange = dist.ProcessGroupGloo(store, rank, 3, timedelta(seconds=20))
        group, unread = DeviceGroup(exchange, 3), torch.zeros(1, 1, dtype=torch.int64)
        return (
            group.all_reduce(given[rank].t(), unread),
            group.all_gather(logits[rank], unread, 20),
        )

    with ThreadPoolExecutor(3) as pool:
        for total, gathered in pool.map(run, range(3)):
            assert torch.equal(total, all_reduce_reference([x.t() for x in given]))
            assert torch.equal(gathered, all_gather_reference(logits, 20))
            assert gathered.is_contiguous()


@pytest.mark.skipif(dist.is_nccl_available(), reason="torch has NCCL here")
def test_a_torch_without_nccl_is_refused_by_name() -> None:
    with pytest.raises(EngineError, match="has no NCCL, by which 2 GPUs compute together"):
        new_store(2)
