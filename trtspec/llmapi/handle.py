"""GenerationHandle: the caller's end of a request that runs on the worker's thread."""

from __future__ import annotations

import asyncio
import copy
import queue
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any

from trtspec.errors import TrtspecError
from trtspec.llmapi.outputs import RequestOutput


class GenerationHandle:
    """Wait for a request (``result()``, ``await handle``) or iterate over its growth.

    Iterating (``for`` or ``async for``) yields a snapshot of the output after each step that added
    tokens, the last one finished. A handle has one consumer: waiting and iterating drain the same
    queue.
    """

    def __init__(
        self, output: RequestOutput, streaming: bool, abort: Callable[[RequestOutput], None]
    ) -> None:
        self._output = output
        self._streaming = streaming
        self._abort = abort
        self._updates: queue.SimpleQueue[RequestOutput] = queue.SimpleQueue()
        self._last: RequestOutput | None = None

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
        self.wait(timeout)
        return self._checked()

    def wait(self, timeout: float | None = None) -> RequestOutput:
        """`result`, but a failed request is returned with its ``error`` instead of raised."""
        while self._last is None or not self._last.finished:
            self._next(timeout)
        return self._last

    async def aresult(self) -> RequestOutput:
        """`result`, without blocking the event loop."""
        return await asyncio.to_thread(self.result)

    def __await__(self) -> Generator[Any, None, RequestOutput]:
        return self.aresult().__await__()

    def __iter__(self) -> Iterator[RequestOutput]:
        while self._last is None or not self._last.finished:
            self._next(None)
            yield self._checked()

    async def __aiter__(self) -> AsyncIterator[RequestOutput]:
        while self._last is None or not self._last.finished:
            await asyncio.to_thread(self._next, None)
            yield self._checked()

    def publish(self) -> None:
        """Worker's side: the output grew or ended."""
        if self._output.finished:
            self._updates.put(self._output)
        elif self._streaming:
            self._updates.put(_snapshot(self._output))

    def _next(self, timeout: float | None) -> None:
        try:
            self._last = self._updates.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(
                f"request {self.request_id} is not finished after {timeout} s"
            ) from None

    def _checked(self) -> RequestOutput:
        assert self._last is not None
        if self._last.error is not None:
            raise _fresh(self._last.error)
        return self._last


def _snapshot(output: RequestOutput) -> RequestOutput:
    taken = copy.copy(output)
    taken.outputs = [copy.copy(completion) for completion in output.outputs]
    for completion in taken.outputs:
        completion.token_ids = list(completion.token_ids)
        completion.logprobs = None if completion.logprobs is None else list(completion.logprobs)
    return taken


def _fresh(error: TrtspecError) -> TrtspecError:
    """A copy to raise, so that tracebacks of several callers do not pile up on one object."""
    return type(error)(*error.args)
