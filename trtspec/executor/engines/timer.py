"""EngineTimer: the seconds that an engine's calls take, on a CPU or a CUDA device."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

import torch

A = TypeVar("A")
T = TypeVar("T")


class EngineTimer:
    """Adds up the time of calls: wall-clock time on a CPU, where a call returns when it is done;
    device time on CUDA, where it returns earlier and is added once a later call finds it finished.
    """

    def __init__(self, device: torch.device) -> None:
        self.seconds = 0.0
        self._on_cuda = device.type == "cuda"
        self._running: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()

    def reset(self) -> None:
        """Forget all calls so far."""
        self.seconds = 0.0
        self._running.clear()

    def measure(self, call: Callable[[A], T], argument: A) -> T:
        """Make a call, and time it unless it fails; returns its result."""
        if not self._on_cuda:
            began = time.perf_counter()
            result = call(argument)
            self.seconds += time.perf_counter() - began
            return result
        while self._running and self._running[0][1].query():  # type: ignore[no-untyped-call]
            start, end = self._running.popleft()
            self.seconds += start.elapsed_time(end) / 1e3
        start, end = _event(), _event()
        start.record()
        result = call(argument)
        end.record()
        self._running.append((start, end))
        return result


def _event() -> torch.cuda.Event:
    event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    return event
