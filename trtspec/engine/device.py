"""The device an engine runs on: whether it is there, and what it is."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from trtspec.ops import native as native  # registers the custom ops

_AN_OP = "trtspec::paged_tree_attention"


def device_problem(device: str) -> str | None:
    """Why nothing can be built for or run on ``device`` (cpu or cuda) here; None if it can.

    A sentence part that follows "but" and ends with the remedy.
    """
    if device == "cpu":
        return None
    if torch.version.cuda is None:
        return f"torch {torch.__version__} has no CUDA; install a CUDA build of torch"
    if not torch.cuda.is_available():
        return (
            f"torch {torch.__version__} finds no CUDA device; check the driver (nvidia-smi) and "
            "CUDA_VISIBLE_DEVICES"
        )
    if not torch._C._dispatch_has_kernel_for_dispatch_key(_AN_OP, "CUDA"):
        return (
            "this installation of trtspec has no CUDA ops (trtspec/lib/libtrtspec_cuda_ops.so); "
            "install trtspec again where nvcc is found"
        )
    return None


def gpu_name() -> str:
    """Name of the CUDA device, as ``NVIDIA H200``."""
    return str(torch.cuda.get_device_name(0))


def compute_capability() -> str:
    """Of the CUDA device, as ``9.0``; compiled kernels run on no other."""
    major, minor = torch.cuda.get_device_capability(0)
    return f"{major}.{minor}"


def free_memory(device: str) -> int:
    """Bytes of the device's memory that can be had, on the CPU without swapping. Files that the
    kernel keeps in memory count as free: after a build they may fill nearly all of it."""
    if device == "cuda":
        free, _ = torch.cuda.mem_get_info(0)
        return int(free)
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
