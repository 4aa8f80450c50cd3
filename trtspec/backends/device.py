"""The device that an engine runs on: whether it is present, and its properties."""

from __future__ import annotations

import os

import torch

from trtspec.errors import ConfigError
from trtspec.ops import native as native  # registers the custom ops
from trtspec.ops.cuda_ops import register_cuda_ops
from trtspec.ops.host import available_memory


def device_problem(device: str, compiles_kernels: bool = False) -> str | None:
    """Why nothing can be built for or run on ``device`` (cpu or cuda) here; None if it can.

    ``compiles_kernels``: the engine has its own attention, and the few kernels beside it are
    compiled on demand, so it needs no library of CUDA ops. The answer completes a sentence after
    "but", and ends with the remedy.
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
    if native.HAS_CUDA_OPS or (compiles_kernels and register_cuda_ops()):
        return None
    remedy = "install trtspec again where nvcc is found"
    if compiles_kernels:
        remedy += ", or pip install trtspec[cuda]"
    return (
        "this installation of trtspec has no CUDA ops (trtspec/lib/libtrtspec_cuda_ops.so); "
        + remedy
    )


def gpu_name() -> str:
    """Name of the CUDA device, as ``NVIDIA H200``."""
    return str(torch.cuda.get_device_name(0))


def compute_capability() -> str:
    """Compute capability of the CUDA device, such as ``9.0``; compiled kernels run on no other."""
    major, minor = torch.cuda.get_device_capability(0)
    return f"{major}.{minor}"


def total_memory(device: str) -> int:
    """Bytes of the device's memory, free or not; for a CPU, of the machine's."""
    if device == "cuda":
        return int(torch.cuda.get_device_properties(0).total_memory)
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def free_memory(device: str) -> int:
    """Bytes of the device's memory that are available; for a CPU, see `available_memory`."""
    if device == "cuda":
        free, _ = torch.cuda.mem_get_info(0)
        return int(free)
    return available_memory()


def visible_gpus(count: int) -> list[str]:
    """The first CUDA devices that this process sees, that many, as CUDA_VISIBLE_DEVICES names them.

    Raises:
        ConfigError: there are fewer.
    """
    found = torch.cuda.device_count()
    if found < count:
        raise ConfigError(
            f"tensor_parallel_size {count} takes as many GPUs, torch finds {found}; check "
            "CUDA_VISIBLE_DEVICES, or choose fewer"
        )
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return (named.split(",") if named else [*map(str, range(found))])[:count]
