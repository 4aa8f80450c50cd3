"""A CUDA runtime without a GPU, as `trtspec.backends.tensorrt.cuda_stream` calls it.

Streams defer their work until something waits for them; graphs are lists of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class _Status(int):
    name = "cudaErrorStreamCaptureUnsupported"


@dataclass
class _Event:
    stream: int = 0
    count: int = 0


@dataclass
class _Stream:
    pending: list[Callable[[], None]] = field(default_factory=list)
    done: int = 0
    captured: list[Callable[[], None]] | None = None
    sees_inputs: bool = False

    def drain(self, count: int) -> None:
        while self.done < count:
            self.done += 1
            self.pending.pop(0)()


class FakeCuda:
    """What `trtspec.backends.tensorrt.cuda_stream` uses of ``cuda.bindings.runtime``. Stream 0 is
    the caller's, whose work is torch's on the CPU: always done."""

    cudaStreamNonBlocking = 1
    cudaEventDisableTiming = 2
    cudaStreamCaptureMode = SimpleNamespace(cudaStreamCaptureModeThreadLocal=1)

    def __init__(self) -> None:
        self.streams: dict[int, _Stream] = {}
        self.num_launches = 0
        self._handles = itertools.count(1)

    def cudaStreamCreateWithFlags(self, flags: int) -> tuple[_Status, int]:
        handle = next(self._handles)
        self.streams[handle] = _Stream()
        return _Status(), handle

    def cudaStreamDestroy(self, stream: int) -> tuple[_Status]:
        self.streams.pop(stream)
        return (_Status(),)

    def cudaEventCreateWithFlags(self, flags: int) -> tuple[_Status, _Event]:
        return _Status(), _Event()

    def cudaEventDestroy(self, event: _Event) -> tuple[_Status]:
        return (_Status(),)

    def cudaEventRecord(self, event: _Event, stream: int) -> tuple[_Status]:
        event.stream = stream
        if stream:
            own = self.streams[stream]
            event.count = own.done + len(own.pending)
        return (_Status(),)

    def cudaStreamWaitEvent(self, stream: int, event: _Event, flags: int) -> tuple[_Status]:
        if stream == 0:
            self.streams[event.stream].drain(event.count)
            self.streams[event.stream].sees_inputs = False
        else:
            assert event.stream == 0, "only the caller's stream is waited for"
            self.streams[stream].sees_inputs = True
        return (_Status(),)

    def cudaStreamSynchronize(self, stream: int) -> tuple[_Status]:
        own = self.streams[stream]
        own.drain(own.done + len(own.pending))
        return (_Status(),)

    def cudaStreamBeginCapture(self, stream: int, mode: int) -> tuple[_Status]:
        self.streams[stream].captured = []
        return (_Status(),)

    def cudaStreamEndCapture(self, stream: int) -> tuple[_Status, Any]:
        captured, self.streams[stream].captured = self.streams[stream].captured, None
        return _Status(), captured

    def cudaGraphInstantiate(self, graph: Any, flags: int) -> tuple[_Status, Any]:
        return _Status(), list(graph)

    def cudaGraphDestroy(self, graph: Any) -> tuple[_Status]:
        return (_Status(),)

    def cudaGraphExecDestroy(self, graph: Any) -> tuple[_Status]:
        return (_Status(),)

    def cudaGraphLaunch(self, graph: Any, stream: int) -> tuple[_Status]:
        self.num_launches += 1
        for work in graph:
            self.enqueue(stream, work)
        return (_Status(),)

    def enqueue(self, stream: int, work: Callable[[], None]) -> None:
        own = self.streams[stream]
        if own.captured is not None:
            own.captured.append(work)
            return
        assert own.sees_inputs, "the work may run before its inputs are there"
        own.pending.append(work)
