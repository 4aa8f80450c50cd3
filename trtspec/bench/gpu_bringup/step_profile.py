"""What steps consist of: device kernels and the gaps between them, from torch's profiler, and the
host's time by phase, from its own clock."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from time import perf_counter_ns
from typing import Any
from unittest.mock import patch

import torch
from torch.profiler import profile

from trtspec.backends.staging import Staging
from trtspec.executor.engines import model_engine
from trtspec.executor.engines.kv_tensors import KVTensors
from trtspec.executor.engines.timer import EngineTimer
from trtspec.executor.py_executor import PyExecutor
from trtspec.executor.schedule.resources import ResourceManager
from trtspec.executor.step.verification import Verification

PHASES: tuple[tuple[str, Any, str], ...] = (
    ("plan", PyExecutor, "plan"),
    ("draft", PyExecutor, "launch"),
    ("pack", model_engine, "pack"),
    ("pack", model_engine, "pad"),
    ("pack", Staging, "to_device"),
    ("launch", EngineTimer, "measure"),
    ("read", model_engine, "to_host"),
    ("read", Verification, "read"),
    ("commit", PyExecutor, "collect"),
    ("commit", ResourceManager, "commit"),
    ("commit", KVTensors, "compact"),
)
"""A phase, and a function whose time it is, less that of other phases called within: what is left
of a launch is the drafter's own work, of a collect that of taking over a result."""
_LISTED = 8


class Stopwatch:
    """Nanoseconds by phase, of one thread; "between": in no phase."""

    def __init__(self) -> None:
        self.ns = Counter({phase: 0 for phase, _, _ in PHASES})
        self._stack, self._since = ["between"], perf_counter_ns()

    @contextmanager
    def watching(self, phases: Sequence[tuple[str, Any, str]] = PHASES) -> Iterator[None]:
        """Count what is called inside."""
        with ExitStack() as stack:
            for phase, owner, name in phases:
                timed = self._timed(phase, getattr(owner, name))
                stack.enter_context(patch.object(owner, name, timed))
            self._since = perf_counter_ns()
            yield
            self._charge()

    def _timed(self, phase: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            self._charge()
            self._stack.append(phase)
            try:
                return call(*args, **options)
            finally:
                self._charge()
                self._stack.pop()

        return timed

    def _charge(self) -> None:
        now = perf_counter_ns()
        self.ns[self._stack[-1]] += now - self._since
        self._since = now


def profiled(run: Callable[[], int]) -> dict[str, Any]:
    """Microseconds of a mean step of ``run``, which returns its number of steps: of the host by
    phase, and in another run of the device, as the profiler takes host time."""
    watch = Stopwatch()
    with watch.watching():
        steps = run()
    host = {f"{phase} us": ns / 1e3 / steps for phase, ns in watch.ns.items()}
    with profile() as seen:
        steps = run()
    kernels = [
        (event.name, event.time_range.start, event.time_range.end)
        for event in seen.events()
        if event.device_type.name == "CUDA"
    ]
    return {**host, **device_figures(kernels, steps)}


def device_figures(kernels: Sequence[tuple[str, float, float]], steps: int) -> dict[str, Any]:
    """For kernels and copies (name, start and end in microseconds) in that many steps: their
    number, the sum of their times, the gaps in which none ran, and the longest with their shares.
    """
    by_name, gaps, reached = defaultdict[str, float](float), 0.0, torch.inf
    for name, start, end in sorted(kernels, key=lambda kernel: kernel[1]):
        by_name[name] += end - start
        gaps += max(0.0, start - reached)
        reached = end if reached == torch.inf else max(reached, end)
    total = sum(by_name.values())
    longest = sorted(by_name.items(), key=lambda item: -item[1])[:_LISTED]
    return {
        "kernels": len(kernels) / steps,
        "kernels us": total / steps,
        "gaps us": gaps / steps,
        "longest": [f"{name[:48]} {us / total:.0%}" for name, us in longest],
    }
