"""The stream of a device that is faked on the CPU: what it was given, and what of it has ended."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

waits: list[str] = []
"""The operations for which the host waited for the device."""
_POISON = 0x5A


@runtime_checkable
class Held(Protocol):
    """A tensor on the device, with the CPU's that has its values."""

    held: Tensor


class Work:
    """given: pieces of work that the device was given; done: those of which the host knows that
    they have ended, the first ones."""

    def __init__(self) -> None:
        self.given = self.done = 0
        self._copies: deque[tuple[int, Callable[[], None]]] = deque()

    def give(self) -> int:
        self.given += 1
        return self.given

    def copy(self, to: Tensor, source: Tensor) -> None:
        """A copy that nobody waits for, between pinned memory and the device."""
        values = source.clone()
        if isinstance(source, Held):
            to.fill_(_POISON)

            def end() -> None:
                to.copy_(values.held)
        else:
            assert isinstance(to, Held), "a copy is to the device or from it"
            to.held.copy_(source)

            def end() -> None:
                if not torch.equal(values.view(torch.uint8), source.view(torch.uint8)):
                    raise AssertionError("memory of the host changed while a copy read it")

        self._copies.append((self.give(), end))

    def wait(self, until: int) -> None:
        """The host waits for a piece of work and all before it."""
        self.done = max(self.done, until)
        while self._copies and self._copies[0][0] <= self.done:
            self._copies.popleft()[1]()


work = Work()


class Stream:
    cuda_stream = 0

    def wait_stream(self, other: Any) -> None:
        """There is one queue of work."""

    def synchronize(self) -> None:
        work.wait(work.given)


class Event:
    """One that was never recorded has nothing to wait for."""

    def __init__(self, **options: Any) -> None:
        self._when, self._at = 0.0, 0

    def record(self, stream: Any = None) -> None:
        self._when, self._at = time.perf_counter(), work.give()

    def query(self) -> bool:
        return self._at <= work.done

    def synchronize(self) -> None:
        if not self.query():
            waits.append("event")
        work.wait(self._at)

    def elapsed_time(self, end: Event) -> float:
        if not (self.query() and end.query()):
            raise RuntimeError("both events must be completed before calculating elapsed time")
        return 1e3 * (end._when - self._when)
