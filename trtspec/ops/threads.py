"""The threads that run kernels side by side."""

from __future__ import annotations

import torch

from trtspec.ops import native  # noqa: F401  registers the op


def release_threads() -> None:
    """End the threads that wait for the next kernel of the calling thread, those of this package's
    kernels and those of torch's, which are OpenMP's; the next one starts new ones.

    GNU's OpenMP lets threads wait by spinning only while there are no more of them than cores, and
    idle teams of other threads count: with one left behind, every parallel region of an engine's
    call begins and ends in the kernel (a decoding step of 300 million parameters took 10 to 20 %
    longer on 2 cores).
    """
    torch.ops.trtspec._release_threads()
