"""CUDA streams and graphs through cuda-python (the extra ``trtspec[cuda]``)."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from trtspec.errors import ConfigError, EngineError
from trtspec.ops.cuda_driver import cudart


def require_cuda_python() -> None:
    """Raise ConfigError, naming the extra, if cuda-python is missing."""
    if cudart is None:
        raise ConfigError(
            "running TensorRT engines needs cuda-python, which is not installed; install it: "
            "pip install trtspec[cuda]"
        )


def callers_stream() -> int:
    """The handle of the stream on which torch works in this thread."""
    return int(torch.cuda.current_stream().cuda_stream)


class CudaStream:
    """A separate stream on the current device; the caller's stream waits for it."""

    def __init__(self) -> None:
        """ConfigError if cuda-python is missing, EngineError if there is no device."""
        require_cuda_python()
        stream = _call(cudart.cudaStreamCreateWithFlags, cudart.cudaStreamNonBlocking)
        event = _call(cudart.cudaEventCreateWithFlags, cudart.cudaEventDisableTiming)
        self.handle = int(stream)
        self._event = event
        for destroy, thing in (
            (cudart.cudaStreamDestroy, stream),
            (cudart.cudaEventDestroy, event),
        ):
            _destroy_with(self, destroy, thing)

    def run(self, work: Callable[[], None]) -> None:
        """Let ``work`` enqueue on this stream: after everything on the caller's stream now, and
        before everything enqueued there later. Does not wait for the device."""
        caller = callers_stream()
        _call(cudart.cudaEventRecord, self._event, caller)
        _call(cudart.cudaStreamWaitEvent, self.handle, self._event, 0)
        work()
        _call(cudart.cudaEventRecord, self._event, self.handle)
        _call(cudart.cudaStreamWaitEvent, caller, self._event, 0)

    def capture(self, work: Callable[[], None]) -> CudaGraph:
        """The graph of what ``work`` enqueues here, without running it.

        Raises:
            EngineError: it does something that graphs do not support.
        """
        # Other threads may use the device meanwhile: only what this one does is watched.
        mode = cudart.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        _call(cudart.cudaStreamBeginCapture, self.handle, mode)
        try:
            work()
        except BaseException:
            cudart.cudaStreamEndCapture(self.handle)  # fails too, and ends the capture
            raise
        return CudaGraph(_call(cudart.cudaStreamEndCapture, self.handle), self)

    def synchronize(self) -> None:
        """Wait until everything on this stream is done."""
        _call(cudart.cudaStreamSynchronize, self.handle)


class CudaGraph:
    """Captured work that can be enqueued repeatedly."""

    def __init__(self, graph: Any, stream: CudaStream) -> None:
        self._stream = stream
        try:
            self._executable = _call(cudart.cudaGraphInstantiate, graph, 0)
        finally:
            cudart.cudaGraphDestroy(graph)
        _destroy_with(self, cudart.cudaGraphExecDestroy, self._executable)

    def launch(self) -> None:
        """Enqueue it on the stream that it was captured from."""
        _call(cudart.cudaGraphLaunch, self._executable, self._stream.handle)


def _destroy_with(owner: object, destroy: Callable[[Any], Any], thing: Any) -> None:
    """Destroy a resource when its owner is collected; a process that exits leaves it to the
    driver."""
    weakref.finalize(owner, destroy, thing).atexit = False


def _call(function: Any, *arguments: Any) -> Any:
    """The results of a cuda-python function besides its status; EngineError if it fails."""
    status, *values = function(*arguments)
    if int(status) != 0:
        raise EngineError(f"{function.__name__} failed: {status.name}")
    return values[0] if values else None
