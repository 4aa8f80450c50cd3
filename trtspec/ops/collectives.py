"""``all_reduce``, ``all_gather``: what the ranks of a split network compute together.

The ranks are processes of one host. All make the same calls in the same order; a call returns once
every rank has made it. A network holds its `RankGroup` as a tensor, ``group [1, 1] i64``: its
address, which is zero in files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from trtspec.ops import native  # noqa: F401  registers the ops

_class: Any = torch.classes.trtspec.RankGroup

PATIENCE = 300.0
"""Seconds that a rank waits for another one, which may be reading its weights from a slow disk.
Death is noticed immediately by whoever watches the processes; this ends the wait for a rank that
hangs."""


class RankGroup:
    """One rank's part of a group, see cpp/include/trtspec/rank_group.hpp.

    tensor: the group as a network's input, valid as long as this object lives.
    """

    def __init__(self, memory: int, rank: int, ranks: int, patience: float = PATIENCE) -> None:
        """``memory``: the descriptor of a file of `memory_bytes`, zeros at first.

        Raises:
            RuntimeError: a rank that is none, or memory that cannot be shared.
        """
        self.rank, self.ranks = rank, ranks
        self._group = _class(memory, rank, ranks, patience)
        self.tensor = torch.tensor([[self._group.address()]])

    @staticmethod
    def memory_bytes(ranks: int) -> int:
        """Bytes of the file that this many ranks share."""
        return int(_class.memory_bytes(ranks))

    def end(self) -> None:
        """Let all calls of all ranks fail from now on, including those that wait."""
        self._group.end()


def all_reduce(x: Tensor, group: Tensor) -> Tensor:
    """The sum of all ranks' x.

    Args:
        x: float32, bfloat16 or float16 of any shape, the same on all ranks.
        group: [1, 1] int64, see `RankGroup`.
    Returns:
        As x. An element is the sum of the ranks' elements in the order of the ranks, in float32,
        rounded once: it has the same bits on every rank, and depends on no other element.
    Raises:
        RuntimeError: shapes or dtypes do not fit, the group has ended, or a rank did not come.
    """
    result: Tensor = torch.ops.trtspec.all_reduce(x, group)
    return result


def all_gather(x: Tensor, group: Tensor, width: int) -> Tensor:
    """The columns of all ranks' rows, side by side in the order of the ranks.

    Args:
        x: [R, n] float32, of the same shape on all ranks.
        group: [1, 1] int64, see `RankGroup`.
        width: columns that are wanted, up to n times the number of ranks; the last are left out.
    Returns:
        [R, width], dtype of x.
    Raises:
        RuntimeError: see `all_reduce`.
    """
    result: Tensor = torch.ops.trtspec.all_gather(x, group, width)
    return result


def all_reduce_reference(parts: Sequence[Tensor]) -> Tensor:
    """``all_reduce`` of the ranks' ``parts``, in plain torch."""
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    return total.to(parts[0].dtype)


def all_gather_reference(parts: Sequence[Tensor], width: int) -> Tensor:
    """``all_gather`` of the ranks' ``parts``, in plain torch."""
    return torch.cat(list(parts), dim=1)[:, :width]


@torch.library.register_fake("trtspec::all_reduce")  # type: ignore[untyped-decorator]
def _all_reduce_fake(x: Tensor, group: Tensor) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.register_fake("trtspec::all_gather")  # type: ignore[untyped-decorator]
def _all_gather_fake(x: Tensor, group: Tensor, width: int) -> Tensor:
    return x.new_empty((x.shape[0], width))
