"""The device an engine runs on: whether it is there, and what it is."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from trtspec.ops import native as native  # registers the custom ops
from trtspec.ops.cuda_ops import register_cuda_ops


def device_problem(device: str, backend: str = "aoti") -> str | None:
    """Why nothing can be built for or run on ``device`` (cpu or cuda) here; None if it can.

    TensorRT brings its own attention: what runs between its engines needs no library of CUDA ops.
    The answer is a sentence part that follows "but" and ends with the remedy.
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
    if native.HAS_CUDA_OPS or (backend == "tensorrt" and register_cuda_ops()):
        return None
    remedy = "install trtspec again where nvcc is found"
    if backend == "tensorrt":
        remedy += ", or pip install trtspec[cuda]"
    return (
        "this installation of trtspec has no CUDA ops (trtspec/lib/libtrtspec_cuda_ops.so); "
        + remedy
    )


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
