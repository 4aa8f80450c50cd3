"""The threads that run kernels side by side."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trtspec.ops import native  # noqa: F401  registers the op


def take_threads(ranks: int = 1) -> None:
    """From now on kernels of this package that the calling thread runs have all threads of torch's
    setting, or the share of one of so many ranks, and torch's own ops have that thread alone.

    OpenMP's threads, which torch's ops share their work with, wait for more by spinning for
    milliseconds: after a copy of 200 KB in every step, they held the cores that the next engine
    call needed (a decoding step of a batch of 16 took 12 % longer on 2 cores).

    On a machine of several memory nodes the thread and those that help it stay each at its node.
    """
    torch.ops.trtspec._take_threads(ranks)


def copy_to_nodes(to: Sequence[Tensor], source: Sequence[Tensor]) -> None:
    """Copy contiguous CPU tensors of equal bytes. Of each, the thread that will read a share of its
    bytes first writes it, so that on a machine of several memory nodes it lies at that thread's.

    Raises:
        RuntimeError: tensors that differ in bytes, or are not contiguous.
    """
    torch.ops.trtspec._copy_to_nodes(list(to), list(source))
