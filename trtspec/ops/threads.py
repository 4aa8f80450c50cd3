"""The threads that run kernels in parallel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trtspec.ops import native  # noqa: F401  registers the op


def take_threads(ranks: int = 1) -> None:
    """From now on this package's kernels called by this thread use all threads of torch's setting,
    or one rank's share of them, and torch's own ops use this thread only.

    OpenMP's threads, which torch's ops use, spin for milliseconds while waiting for more work:
    after a copy of 200 KB in every step, they occupied the cores that the next engine call needed
    (a decoding step of a batch of 16 took 12 % longer on 2 cores).

    On a machine with several memory nodes each of the threads stays at its node.
    """
    torch.ops.trtspec._take_threads(ranks)


def copy_to_nodes(to: Sequence[Tensor], source: Sequence[Tensor]) -> None:
    """Copy contiguous CPU tensors of equal bytes. Each share is first written by the thread that
    will read it, so that on a machine with several memory nodes it is local to that thread.

    Raises:
        RuntimeError: tensors differ in bytes, or are not contiguous.
    """
    torch.ops.trtspec._copy_to_nodes(list(to), list(source))
