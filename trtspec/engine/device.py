"""The device an engine runs on: whether it is there, and what it is."""

from __future__ import annotations

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


def free_device_memory() -> int:
    """Bytes of the CUDA device that nobody has."""
    free, _ = torch.cuda.mem_get_info(0)
    return int(free)
