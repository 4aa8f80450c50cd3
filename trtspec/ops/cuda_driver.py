"""The CUDA driver and NVRTC by way of cuda-python (the extra ``trtspec[cuda]``): compiles sources
without a toolkit on the machine, loads the result and launches it. ``cudart``, the bindings of the
CUDA runtime, is None without cuda-python."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trtspec.errors import BuildError

try:
    from cuda.bindings import driver, nvrtc, runtime
except ImportError:
    driver = nvrtc = runtime = None

cudart: Any = runtime

Grid = tuple[int, int, int]

_STATIC_SHARED_BYTES = 48 * 1024  # what a kernel may have without asking for more


class Compiled(NamedTuple):
    """Machine code (or PTX, for an architecture that NVRTC does not know) and the names in it."""

    image: bytes
    names: dict[str, str]


def is_available() -> bool:
    """Whether NVRTC can be called; says nothing about a device."""
    if nvrtc is None:
        return False
    try:
        nvrtc.nvrtcVersion()
    except RuntimeError:  # cuda-python is there, the library is not
        return False
    return True


def require() -> None:
    """BuildError, naming the extra, if cuda-python or NVRTC is missing."""
    if not is_available():
        raise BuildError(
            "compiling the CUDA kernels needs cuda-python and NVRTC; install them:"
            " pip install trtspec[cuda]"
        )


def compile_source(
    name: str,
    source: str,
    architecture: int,
    include_dirs: Sequence[Path],
    expressions: Sequence[str],
    options: Sequence[str] = (),
) -> Compiled:
    """Compile a CUDA source.

    Args:
        name: of the source, for messages.
        architecture: compute capability as major * 10 + minor.
        include_dirs: searched in this order, and nowhere else.
        expressions: C++ names of the kernels to find in the result, such as ``ns::kernel<float>``.
        options: for NVRTC, besides those that every source has.
    Raises:
        BuildError: with the compiler's message; or cuda-python is missing.
    """
    require()
    known = [arch for arch in _call(nvrtc.nvrtcGetSupportedArchs) if arch <= architecture]
    if not known:
        raise BuildError(
            f"NVRTC does not compile for compute capability {architecture / 10:.1f};"
            " it needs a newer GPU"
        )
    exact = known[-1] == architecture
    all_options = [
        f"--gpu-architecture={'sm' if exact else 'compute'}_{known[-1]}",
        "-std=c++20",
        # The launchers of the sources are host code, which NVRTC does not take; as device
        # functions they are never called.
        "-default-device",
        "--no-source-include",
        "-diag-suppress=1097",  # attributes of other compilers
        *(f"-I{folder}" for folder in include_dirs),
        *options,
    ]
    program = _call(nvrtc.nvrtcCreateProgram, source.encode(), name.encode(), 0, None, None)
    try:
        for expression in expressions:
            _call(nvrtc.nvrtcAddNameExpression, program, expression.encode())
        (status,) = nvrtc.nvrtcCompileProgram(
            program, len(all_options), [option.encode() for option in all_options]
        )
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = bytearray(_call(nvrtc.nvrtcGetProgramLogSize, program))
            _call(nvrtc.nvrtcGetProgramLog, program, log)
            said = log.rstrip(b"\0").decode(errors="replace")
            raise BuildError(f"{name} does not compile for {all_options[0]}:\n{said}")
        names = {
            expression: _call(nvrtc.nvrtcGetLoweredName, program, expression.encode()).decode()
            for expression in expressions
        }
        size, read = (
            (nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
            if exact
            else (nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
        )
        image = bytearray(_call(size, program))
        _call(read, program, image)
        return Compiled(bytes(image), names)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


class Device:
    """A device and its primary context, the one that the CUDA runtime (torch, TensorRT) uses."""

    def __init__(self, index: int) -> None:
        """BuildError if cuda-python, the driver or the device is missing."""
        require()
        try:
            _call(driver.cuInit, 0)
        except RuntimeError as error:  # cuda-python found no driver library
            raise BuildError(f"no CUDA driver on this machine ({error})") from error
        self.handle: Any = _call(driver.cuDeviceGet, index)
        # Held for the life of the process, as the runtime does.
        self.context: Any = _call(driver.cuDevicePrimaryCtxRetain, self.handle)
        attribute = driver.CUdevice_attribute
        major, minor = (
            _call(driver.cuDeviceGetAttribute, name, self.handle)
            for name in (
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
        )
        self.architecture: int = 10 * major + minor

    def load(self, compiled: Compiled) -> dict[str, Any]:
        """The kernels of `compiled`, by the expressions with which they were requested."""
        library = _call(driver.cuLibraryLoadData, compiled.image, None, None, 0, None, None, 0)
        return {
            expression: _call(driver.cuLibraryGetKernel, library, name.encode())
            for expression, name in compiled.names.items()
        }

    def launch(
        self,
        kernel: Any,
        grid: Grid,
        threads: int,
        shared_bytes: int,
        stream: int,
        arguments: Sequence[Any],
    ) -> None:
        """Enqueue a kernel of `load`.

        Args:
            threads: of a block, in one dimension.
            shared_bytes: dynamic shared memory of a block.
            stream: its handle; 0 is the default stream.
            arguments: ctypes values, copied by the launch.
        """
        if shared_bytes > _STATIC_SHARED_BYTES:
            most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _call(driver.cuKernelSetAttribute, most, shared_bytes, kernel, self.handle)
        pointers = (ctypes.c_void_p * len(arguments))(
            *(ctypes.addressof(argument) for argument in arguments)
        )
        # The default stream stands for that of the current context.
        _call(driver.cuCtxPushCurrent, self.context)
        try:
            _call(
                driver.cuLaunchKernel,
                driver.CUfunction(int(kernel)),
                *grid,
                threads,
                1,
                1,
                shared_bytes,
                stream,
                ctypes.addressof(pointers),
                0,
            )
        finally:
            _call(driver.cuCtxPopCurrent)


def _call(function: Any, *arguments: Any) -> Any:
    """The results of a cuda-python function besides its status; BuildError if it fails."""
    status, *values = function(*arguments)
    if int(status) != 0:
        raise BuildError(f"{function.__name__} failed: {status.name}")
    return values[0] if values else None
