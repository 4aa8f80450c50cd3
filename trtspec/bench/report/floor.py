"""What a machine can do at best: how fast it reads memory, and multiplies a few rows by weights.

A decoding step reads every weight of its engines, and the K/V of its requests, from memory. The
time of that reading alone is the *memory floor*; all reported shares of it come from here.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.backends.cuda_graph import record
from trtspec.backends.device import free_memory
from trtspec.ops.bandwidth import read_bandwidth
from trtspec.ops.linear import linear, pack_linear

READ_BYTES = 1 << 29
"""Bytes read for a bandwidth sample, if that much memory is available."""
FOOTPRINT = 256 << 20
"""Bytes that calls cycle through, so that each works on data outside of any cache."""
ROWS = (1, 2, 4, 8, 16, 32, 64)
WIDTH = 4096
HIGHEST_SHARE = 1.05
"""Highest plausible share of the memory floor in a measured time. A higher one means that memory
was read faster than its measured bandwidth: other load disturbed the measurement, or caches held
the data."""
NOT_MEASURED = "floor not measured"


@dataclass(frozen=True)
class LinearRate:
    """A product of ``rows`` rows with a square weight matrix in memory: bytes of weights and
    floating-point operations per second."""

    rows: int
    bytes_per_second: float
    flops_per_second: float


@dataclass(frozen=True)
class Floor:
    """A memory floor in ms, and its share of the elapsed time; None: not measured."""

    ms: float | None
    share: float | None

    def to_dict(self) -> dict[str, float | None]:
        """Under the names of result files."""
        return {"memory_floor_ms": self.ms, "memory_floor_share": self.share}


@dataclass(frozen=True)
class MachineRates:
    """``read_bandwidth``: bytes per second of plain reading, by all threads (a CPU) or the whole
    device. ``linear``: products in ``dtype``, by ascending rows."""

    device: str
    dtype: str
    threads: int
    read_bandwidth: float
    linear: tuple[LinearRate, ...]

    def memory_seconds(self, num_bytes: float) -> float:
        """The memory floor for reading that many bytes."""
        return num_bytes / self.read_bandwidth

    def floor_of(self, num_bytes: float, seconds: float) -> Floor:
        """The memory floor for reading that many bytes in that time."""
        floor = self.memory_seconds(num_bytes)
        share = floor / seconds if seconds else 0.0
        return Floor(floor * 1e3, share) if share <= HIGHEST_SHARE else Floor(None, None)

    def with_bandwidth(self, read_bandwidth: float) -> MachineRates:
        """These rates, with another bandwidth sample if that is faster."""
        return replace(self, read_bandwidth=max(read_bandwidth, self.read_bandwidth))

    def linear_seconds(self, weight_bytes: float, rows: int) -> float:
        """Time to multiply ``rows`` rows by weights of that size at the measured rates:
        interpolated between measured numbers of rows, compute-bound beyond the last one."""
        points = [(rate.rows, weight_bytes / rate.bytes_per_second) for rate in self.linear]
        last_rows, last = points[-1]
        if rows >= last_rows:
            return last * rows / last_rows
        after = next(i for i, point in enumerate(points) if point[0] >= rows)
        (low, begin), (high, end) = points[max(after - 1, 0)], points[after]
        return end if high == low else begin + (end - begin) * (rows - low) / (high - low)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "linear": [asdict(rate) for rate in self.linear]}

    def describe(self) -> str:
        """One line: the two rates that matter most."""
        one, most = self.linear[0], self.linear[-1]
        return (
            f"this machine reads {self.read_bandwidth / 1e9:.1f} GB/s ({self.threads} threads, "
            f"{self.device}); {self.dtype} weights times {one.rows} row: "
            f"{one.bytes_per_second / 1e9:.1f} GB/s, times {most.rows} rows: "
            f"{most.bytes_per_second / 1e9:.1f} GB/s, {most.flops_per_second / 1e9:.0f} GFLOP/s"
        )


def measure_machine(
    device: str, dtype: str, rows: Sequence[int] = ROWS, seconds: float = 0.2
) -> MachineRates:
    """Measure now; ``seconds`` per product. Memory is read before and after."""
    kind: torch.dtype = getattr(torch, dtype)
    bandwidth = measure_bandwidth(device)
    rates = [LinearRate(*rate) for rate in linear_rates(device, kind, WIDTH, rows, seconds)]
    threads = torch.get_num_threads()
    bandwidth = max(bandwidth, measure_bandwidth(device))
    return MachineRates(device, dtype, threads, bandwidth, tuple(rates))


def share_text(share: float | None) -> str:
    """A share of the memory floor, in a table."""
    return NOT_MEASURED if share is None else f"{share:.0%}"


def ms_text(ms: float | None) -> str:
    """A memory floor, in a table."""
    return "-" if ms is None else f"{ms:.3f}"


class MemorySpeed:
    """A device's memory bandwidth: the best of samples at several times of a run. A single sample
    may be disturbed, and other load only ever lowers it."""

    def __init__(self, device: str = "cpu") -> None:
        self.best = 0.0  # bytes a second
        self._device = device

    def sample(self) -> None:
        """Measure now."""
        self.best = max(self.best, measure_bandwidth(self._device))


def measure_bandwidth(device: str = "cpu") -> float:
    """Bytes per second at which the device reads its memory, the best of several passes."""
    size = min(READ_BYTES, free_memory(device) // 4)
    if device == "cpu":
        return read_bandwidth(size)
    buffers = [torch.zeros(size // 16, device=device) for _ in range(4)]
    calls = [partial(torch.sum, buffer) for buffer in buffers]
    return buffers[0].numel() * 4 / seconds_on_device(calls, 0.5, device)


def linear_rates(
    device: str, dtype: torch.dtype, width: int, rows: Sequence[int], seconds: float
) -> list[tuple[int, float, float]]:
    """For each number of rows: itself, bytes of weights and operations per second, of the product
    of a square layer as in compiled engines."""
    size = width * width * dtype.itemsize
    weights = [torch.randn(width, width).to(dtype).to(device) for _ in range(copies(size))]
    product = _native_product if device == "cpu" else _library_product
    prepared = [product(weight) for weight in weights]
    found = []
    for count in rows:
        x = torch.randn(count, width).to(dtype).to(device)
        taken = seconds_on_device([partial(call, x) for call in prepared], seconds, device)
        found.append((count, size / taken, 2 * count * width * width / taken))
    return found


def seconds_per_call(
    calls: Sequence[Callable[[], object]], seconds: float, device: str = "cpu"
) -> float:
    """Time of a call, cycling through ``calls`` for about ``seconds``: the 10th percentile, as
    other load only ever adds time."""
    wait = torch.cuda.synchronize if device == "cuda" else _nothing
    for call in calls[:2]:
        call()
    times: list[float] = []
    wait()
    began = time.perf_counter()
    for call in itertools.cycle(calls):
        start = time.perf_counter()
        call()
        wait()
        end = time.perf_counter()
        times.append(end - start)
        if end - began > seconds and len(times) >= 10:
            break
    return sorted(times)[len(times) // 10]


def seconds_on_device(
    calls: Sequence[Callable[[], Tensor]], seconds: float, device: str = "cpu"
) -> float:
    """Like `seconds_per_call`, on CUDA without launches, which take longer than many kernels: the
    calls are replayed as one graph, timed by the device."""
    if device == "cpu":
        return seconds_per_call(calls, seconds)
    graph, _, _ = record(lambda: [call() for call in calls], None)
    before, behind = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]

    def replay() -> float:
        before.record()
        graph.replay()
        behind.record()
        behind.synchronize()
        return float(before.elapsed_time(behind))

    replay()
    times: list[float] = []
    while sum(times) < seconds * 1e3 or len(times) < 3:
        times.append(replay())
    return sorted(times)[len(times) // 10] / 1e3 / len(calls)


def copies(size: int) -> int:
    """How many buffers of that size fill the footprint."""
    return max(2, -(-FOOTPRINT // size))


def _native_product(weight: Tensor) -> Callable[[Tensor], Tensor]:
    packed = pack_linear(weight)
    return lambda x: linear(x, packed, None, weight.shape[0])


def _library_product(weight: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x: F.linear(x, weight)


def _nothing() -> None:
    pass
