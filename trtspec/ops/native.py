"""Loads libtrtspec_ops.so, which registers the ops as ``torch.ops.trtspec.*``, and on a machine
with a CUDA device libtrtspec_cuda_ops.so, which adds their CUDA kernels, if it was built.

Importing this module loads the libraries, once, and lowers torch's number of threads to those that
a quota of processor time leaves, unless OMP_NUM_THREADS or MKL_NUM_THREADS chose it. It raises
BuildError if the first library is missing or one was built for another torch.
"""

from __future__ import annotations

import ctypes
import json
from pathlib import Path

import torch

from trtspec.errors import BuildError

_LIB = Path(__file__).resolve().parent.parent / "lib"

LIBRARY = _LIB / "libtrtspec_ops.so"
"""The op library of this installation."""

CUDA_LIBRARY = _LIB / "libtrtspec_cuda_ops.so"
"""The ops' CUDA kernels; it only exists if a CUDA toolkit and a torch with CUDA were present when
trtspec was built."""


def load_library(library: Path = LIBRARY, build_info: str = "build_info.json") -> None:
    """Load an op library built for the running torch's minor version, as the file `build_info`
    beside it says.

    Raises:
        BuildError: it is missing, was built for another minor version of torch, or does not load.
    """
    remedy = "install trtspec again: pip install <its source folder>"
    if not library.is_file():
        raise BuildError(f"the op library {library} is missing; {remedy}")
    try:
        built_for = str(json.loads((library.parent / build_info).read_text())["torch_version"])
    except (OSError, ValueError, KeyError) as error:
        raise BuildError(
            f"{build_info} beside {library} cannot be read ({error}); {remedy}"
        ) from error
    # The C++ ABI holds for a minor version, whatever the accelerator behind the + is.
    if built_for.split(".")[:2] != torch.__version__.split(".")[:2]:
        raise BuildError(
            f"the op library {library} was built for torch {built_for}, but torch"
            f" {torch.__version__} is running; {remedy}"
        )
    try:
        torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
    except OSError as error:
        raise BuildError(f"the op library {library} does not load ({error}); {remedy}") from error


def load_cuda_library(library: Path = CUDA_LIBRARY) -> bool:
    """Load the ops' CUDA kernels if there is a device and a library; returns whether they are
    loaded.

    Raises:
        BuildError: the library was built for another version of torch, or does not load.
    """
    if not torch.cuda.is_available() or not library.is_file():
        return False
    load_library(library, "cuda_build_info.json")
    return True


load_library()
# In a container torch would start a thread for each core of the machine.
torch.set_num_threads(torch.ops.trtspec._default_threads(torch.get_num_threads()))
ctypes.CDLL(str(LIBRARY), mode=ctypes.RTLD_GLOBAL)  # compiled engines call its C functions
HAS_CUDA_OPS = load_cuda_library()
"""Whether the ops run on CUDA tensors in this process."""
