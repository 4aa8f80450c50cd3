"""The threads that run kernels side by side."""

from __future__ import annotations

import torch

from trtspec.ops import native  # noqa: F401  registers the op


def take_threads() -> None:
    """From now on kernels of this package that the calling thread runs have all threads of torch's
    setting, and torch's own ops have that thread alone.

    OpenMP's threads, which torch's ops share their work with, wait for more by spinning for
    milliseconds: after a copy of 200 KB in every step, they held the cores that the next engine
    call needed (a decoding step of a batch of 16 took 12 % longer on 2 cores).
    """
    torch.ops.trtspec._take_threads()
