"""Overlap: work of the loop that is done while engine calls run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

from trtspec.ops.threads import take_threads

T = TypeVar("T")
Work = Callable[[], None]


class Overlap:
    """Does work beside the first engine call of a step, and finishes it before returning.

    Engines announce their calls (`CountedEngine.before_call`). Calls are always made by the same
    thread, since the kernels' thread pool belongs to it; the work is done by another one, woken
    when a call begins: earlier the two would only compete for the interpreter's lock.

    seconds: time of the work; waited_seconds: how much of it was left when the calls had returned.
    """

    def __init__(self, calls_wait: bool) -> None:
        """``calls_wait``: engine calls return when they are done. Otherwise, as on CUDA, no other
        thread is needed: the work is done after the calls were started."""
        self.seconds = 0.0
        self.waited_seconds = 0.0
        self._calls_wait = calls_wait
        self._offered: Work | None = None
        self._begun: SimpleQueue[Work | None] = SimpleQueue()
        self._ended: SimpleQueue[BaseException | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def during(self, calls: Callable[[], T], work: Work) -> T:
        """The result of ``calls``, once ``work`` is done too; raises what either raises."""
        self._offered = work
        try:
            result = calls()
        finally:
            self._finish()
        return result

    def begin(self) -> None:
        """An engine call begins, on the thread that called `during`."""
        if self._offered is None or not self._calls_wait:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="trtspec-overlap", daemon=True)
            self._thread.start()
        self._begun.put(self._offered)
        self._offered = None

    def close(self) -> None:
        """End the thread, while no work is under way."""
        if self._thread is not None:
            self._begun.put(None)
            self._thread.join()
            self._thread = None

    def _finish(self) -> None:
        began = time.perf_counter()
        work, self._offered = self._offered, None
        error = self._ended.get() if work is None else self._do(work)
        self.waited_seconds += time.perf_counter() - began
        if error is not None:
            raise error

    def _do(self, work: Work) -> BaseException | None:
        began = time.perf_counter()
        try:
            work()
        except BaseException as error:
            return error
        finally:
            self.seconds += time.perf_counter() - began
        return None

    def _serve(self) -> None:
        take_threads()  # torch's ops shall not wake OpenMP's threads beside an engine call
        while (work := self._begun.get()) is not None:
            self._ended.put(self._do(work))
