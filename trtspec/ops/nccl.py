"""`all_reduce` and `all_gather` on CUDA tensors, over torch.distributed's NCCL.

Ranks are processes of one host, each with a GPU of its own. Sums are those of
`trtspec.ops.collectives`, in the order of the ranks: NCCL's own add in an order that depends on how
much is added, so that a row's bits would depend on the other rows of a call. So all ranks' tensors
are gathered and added where they are wanted. That moves ranks / 2 times the bytes of NCCL's sum,
which shows in long prompts; a step's rows are so few that the time is the latency's.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store, TCPStore

from trtspec.errors import EngineError
from trtspec.ops.collectives import PATIENCE, all_gather_reference, all_reduce_reference

_HOST = "127.0.0.1"
_library: Any = torch.library.Library


def new_store(ranks: int) -> TCPStore:
    """Where so many ranks find each other: at a free port, as long as it lives.

    Raises:
        EngineError: torch has no NCCL.
    """
    if not dist.is_nccl_available():
        raise EngineError(
            f"torch {torch.__version__} has no NCCL, by which {ranks} GPUs compute together; "
            "install a CUDA build of torch for Linux, or leave tensor_parallel_size out"
        )
    return TCPStore(_HOST, 0, ranks, is_master=True, wait_for_workers=False)


def store_at(port: int, ranks: int) -> Store:
    """That of rank 0, as the others see it."""
    return TCPStore(_HOST, port, ranks)


class Gathers(Protocol):
    """What is asked of torch.distributed's process groups."""

    def allgather(self, output_tensors: list[Tensor], input_tensor: Tensor) -> dist.Work: ...


class DeviceGroup:
    """What one rank has of a group of GPUs. Of one made by `over`, the ops run on CUDA tensors of
    this process until it is closed; what networks hold as their group is not read."""

    def __init__(self, exchange: Gathers, ranks: int) -> None:
        self._exchange, self._ranks = exchange, ranks
        self._kernels: Any = None

    @classmethod
    def over(cls, store: Store, rank: int, ranks: int) -> DeviceGroup:
        """That of a rank, once all ranks do this over one store.

        Raises:
            EngineError: this process has a group already.
        """
        if dist.is_initialized():
            raise EngineError(
                "this process has a group of torch.distributed already, another network over "
                "several GPUs among others; close that, or open this one in a process of its own"
            )
        wait = timedelta(seconds=PATIENCE)
        dist.init_process_group("nccl", store=store, rank=rank, world_size=ranks, timeout=wait)
        exchange = dist.group.WORLD
        assert exchange is not None, "it was made just now"
        made = cls(exchange, ranks)
        made._kernels = kernels = _library("trtspec", "IMPL", "CUDA")
        kernels.impl("all_reduce", made.all_reduce)
        kernels.impl("all_gather", made.all_gather)
        return made

    def all_reduce(self, x: Tensor, group: Tensor) -> Tensor:
        """See `trtspec.ops.collectives.all_reduce`."""
        return all_reduce_reference(self._of_all(x))

    def all_gather(self, x: Tensor, group: Tensor, width: int) -> Tensor:
        """See `trtspec.ops.collectives.all_gather`."""
        return all_gather_reference(self._of_all(x), width).contiguous()

    def close(self) -> None:
        """Let calls that wait for another rank fail, and the ops be others'. May come twice."""
        if self._kernels is not None:
            self._kernels._destroy()
            self._kernels = None
            dist.distributed_c10d._abort_process_group()

    def _of_all(self, x: Tensor) -> list[Tensor]:
        own = x.contiguous()
        parts = [torch.empty_like(own) for _ in range(self._ranks)]
        self._exchange.allgather(parts, own).wait()
        return parts
