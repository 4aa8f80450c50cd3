"""EngineTimer: the seconds that an engine's calls take, on a CPU or a CUDA device."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

from trtspec.executor.engines.buckets import Bucket

T = TypeVar("T")


@dataclass(frozen=True)
class CallTimes:
    """A number of calls, and the seconds of all of them."""

    count: int = 0
    seconds: float = 0.0

    def __add__(self, other: CallTimes) -> CallTimes:
        return CallTimes(self.count + other.count, self.seconds + other.seconds)


class EngineTimer:
    """Adds up the time of calls: wall-clock time on a CPU, where a call returns when it is done;
    device time on CUDA, between two events of the call's stream. There a call returns earlier, and
    is added once a later one finds it finished: the host never waits for an event.

    seconds: of all calls. by_bucket: of those that were padded, a cost table.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_cuda = device.type == "cuda"
        self.reset()

    def reset(self) -> None:
        """Forget all calls so far."""
        self.seconds = 0.0
        self.by_bucket: dict[Bucket, CallTimes] = {}
        self._running = deque[tuple[Bucket | None, torch.cuda.Event, torch.cuda.Event]]()

    def measure(self, call: Callable[[], T], bucket: Bucket | None = None) -> T:
        """Make a call, and time it unless it fails; returns its result. ``bucket``: what it was
        padded to."""
        if not self._on_cuda:
            began = time.perf_counter()
            result = call()
            self._add(bucket, time.perf_counter() - began)
            return result
        while self._running and self._running[0][2].query():  # type: ignore[no-untyped-call]
            ended, start, end = self._running.popleft()
            self._add(ended, start.elapsed_time(end) / 1e3)
        start, end = _event(), _event()
        start.record()
        result = call()
        end.record()
        self._running.append((bucket, start, end))
        return result

    def _add(self, bucket: Bucket | None, seconds: float) -> None:
        self.seconds += seconds
        if bucket is not None:
            self.by_bucket[bucket] = self.by_bucket.get(bucket, CallTimes()) + CallTimes(1, seconds)


def _event() -> torch.cuda.Event:
    event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    return event
