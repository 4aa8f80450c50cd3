"""Part ``latency``: the cost of a step besides its kernels: graph launches, copies between host and
device, waking up after an event; and how fast the device reads and copies its memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from statistics import median
from time import perf_counter

import torch

from trtspec.backends.cuda_graph import record
from trtspec.backends.device import free_memory
from trtspec.bench.gpu_bringup.part import Case, PartSkipped, Place
from trtspec.bench.report.floor import measure_bandwidth, seconds_on_device

_NODES = (10, 100, 450)
"""Kernels per graph: of a step of a rollout, of a rollout, of a target."""
_SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20)
_COPIED = 2 << 30
_TIMES = 40


def cases(place: Place) -> Iterable[Case]:
    """None of these can be rehearsed on a CPU."""
    if place.is_rehearsal:
        raise PartSkipped("a CPU has no graphs, pinned copies or events")
    yield Case({"memory": "of the device"}, partial(memory, place.device))
    for nodes in _NODES:
        yield Case({"graph of nodes": nodes}, partial(graph, place.device, nodes))
    for size in _SIZES:
        yield Case({"pinned copy of bytes": size}, partial(copies, place.device, size))
    for blocking in (True, False):
        yield Case({"event that blocks": blocking}, partial(wake_up, place.device, blocking))


def memory(device: str) -> Mapping[str, float]:
    """A copy counts the bytes read and those written."""
    size = min(_COPIED, free_memory(device) // 8)
    source, target = (torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2))
    copied = 2 * size / seconds_on_device([partial(target.copy_, source)], 0.2, device)
    return {"read GB/s": measure_bandwidth(device) / 1e9, "copy GB/s": copied / 1e9}


def graph(device: str, nodes: int) -> Mapping[str, float]:
    """For a graph of the smallest kernels: until its launch returns, until it is done, and its time
    on the device."""
    x = torch.zeros(1, device=device)
    call = partial(x.add_, 1)
    captured, _, _ = record(lambda: [call() for _ in range(nodes)], None)
    return {
        "launch us": microseconds(captured.replay, until_done=False),
        "launch to done us": microseconds(captured.replay),
        "device us": 1e6 * nodes * seconds_on_device([call] * nodes, 0.05, device),
    }


def copies(device: str, size: int) -> Mapping[str, float]:
    """Both directions, until they are done."""
    host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(size, dtype=torch.uint8, device=device)
    return {
        "to device us": microseconds(lambda: there.copy_(host, non_blocking=True)),
        "to host us": microseconds(lambda: host.copy_(there, non_blocking=True)),
    }


def wake_up(device: str, blocking: bool) -> Mapping[str, float]:
    """From the launch of some milliseconds of work until the host continues after it, less the
    device's time."""
    x = torch.zeros(min(1 << 30, free_memory(device) // 8), dtype=torch.uint8, device=device)
    begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True, blocking=blocking)  # type: ignore[no-untyped-call]
    on_device = []

    def call() -> None:
        begin.record()
        for _ in range(4):
            x.add_(1)
        end.record()
        end.synchronize()
        on_device.append(1e3 * begin.elapsed_time(end))

    return {"late us": microseconds(call, until_done=False) - median(on_device)}


def microseconds(call: Callable[[], object], until_done: bool = True) -> float:
    """Of a call on an idle device, by the host's clock; the median."""
    times = []
    for _ in range(_TIMES):
        torch.cuda.synchronize()
        began = perf_counter()
        call()
        if until_done:
            torch.cuda.synchronize()
        times.append(perf_counter() - began)
    return 1e6 * median(times)
