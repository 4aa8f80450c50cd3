"""GenerationHandle: the caller's end of a request that runs on the worker's thread."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any

from trtspec.errors import TrtspecError
from trtspec.executor.metrics import SpeculativeMetrics
from trtspec.llmapi.outputs import RequestOutput


class GenerationHandle:
    """Wait for a request (``result()``, ``await handle``) or iterate over its growth.

    Iterating (``for`` or ``async for``) yields a snapshot of the output after each step that added
    tokens, the last one finished. Any number of callers may wait, also one that gave up before
    (a timeout, a cancelled task); a snapshot goes to one iteration only.
    """

    def __init__(
        self, output: RequestOutput, streaming: bool, abort: Callable[[RequestOutput], None]
    ) -> None:
        self._output = output
        self._streaming = streaming
        self._abort = abort
        self._changed = threading.Condition()
        self._snapshots: deque[RequestOutput] = deque()
        self._ended = False

    @property
    def request_id(self) -> int:
        return self._output.request_id

    def abort(self) -> None:
        """End the request early; what it has so far stays, with finish_reason "abort"."""
        self._abort(self._output)

    def result(self, timeout: float | None = None) -> RequestOutput:
        """Block until the request is finished.

        Raises:
            TrtspecError: the request failed.
            TimeoutError: ``timeout`` seconds passed first; the request goes on.
        """
        return _checked(self.wait(timeout))

    def wait(self, timeout: float | None = None) -> RequestOutput:
        """`result`, but a failed request is returned with its ``error`` instead of raised."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._ended, timeout):
                raise TimeoutError(f"request {self.request_id} is not finished after {timeout} s")
        return self._output

    async def aresult(self) -> RequestOutput:
        """`result`, without blocking the event loop."""
        return await asyncio.to_thread(self.result)

    def __await__(self) -> Generator[Any, None, RequestOutput]:
        return self.aresult().__await__()

    def __iter__(self) -> Iterator[RequestOutput]:
        while True:
            output = _checked(self._next())
            yield output
            if output is self._output:
                return

    async def __aiter__(self) -> AsyncIterator[RequestOutput]:
        while True:
            output = _checked(await asyncio.to_thread(self._next))
            yield output
            if output is self._output:
                return

    def publish(self) -> None:
        """Worker's side: the output grew or ended."""
        with self._changed:
            if self._output.finished:
                self._ended = True
            elif self._streaming:
                self._snapshots.append(_snapshot(self._output))
            self._changed.notify_all()

    def _next(self) -> RequestOutput:
        """The oldest snapshot not yet taken, or the output itself once it has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._snapshots or self._ended)
            return self._snapshots.popleft() if self._snapshots else self._output


def _snapshot(output: RequestOutput) -> RequestOutput:
    taken = copy.copy(output)
    taken.outputs = [copy.copy(completion) for completion in output.outputs]
    for completion in taken.outputs:
        completion.token_ids = list(completion.token_ids)
        completion.logprobs = None if completion.logprobs is None else list(completion.logprobs)
        completion.metrics = SpeculativeMetrics.merged([completion.metrics])
    return taken


def _checked(output: RequestOutput) -> RequestOutput:
    if output.error is not None:
        raise _fresh(output.error)
    return output


def _fresh(error: TrtspecError) -> TrtspecError:
    """A copy to raise, so that tracebacks of several callers do not pile up on one object."""
    return type(error)(*error.args)
