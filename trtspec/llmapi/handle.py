"""GenerationHandle: the caller's end of a request that runs on the worker's thread."""

from __future__ import annotations

import asyncio
import copy
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from trtspec.errors import EngineError, TrtspecError
from trtspec.executor.metrics import SpeculativeMetrics
from trtspec.llmapi.outputs import CompletionOutput, RequestOutput

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Mark:
    """How far one sequence had come at a step. Output only grows, so a snapshot of that step can be
    made from the mark at any later time."""

    index: int
    tokens: int
    chars: int
    steps: int
    metrics: SpeculativeMetrics
    finished: bool
    error: TrtspecError | None


class GenerationHandle:
    """Wait for a request (``result()``, ``await handle``) or iterate over its growth.

    Iterating (``for`` or ``async for``) yields a snapshot of the output after each step that added
    tokens; the last snapshot is finished. A slow reader gets the same snapshots later; an unread
    snapshot costs a few numbers, not a copy. Any number of callers may wait, and may wait again
    after giving up (a timeout, a cancelled `aresult`). ``await handle`` and ``async for`` own the
    request: cancelling them aborts it. Each snapshot goes to one iteration only. Waiting in an
    event loop takes no thread.

    A handle belongs to the process that made it. In a forked child nothing drives the engine, so
    waiting there for an unfinished request raises EngineError.
    """

    def __init__(
        self, output: RequestOutput, streaming: bool, abort: Callable[[RequestOutput], None]
    ) -> None:
        self._output = output
        self._streaming = streaming
        self._abort = abort
        self._changed = threading.Condition()
        self._marks: deque[_Mark] = deque()  # one for each step that was not read yet
        self._shown: dict[int, _Mark] = {}  # for each sequence, the last one that was read
        self._listeners: list[Callable[[], None]] = []
        self._ended = False
        self._process = os.getpid()

    @property
    def request_id(self) -> int:
        return self._output.request_id

    @property
    def output(self) -> RequestOutput:
        """The output itself, which grows until it is finished."""
        return self._output

    def abort(self) -> None:
        """End the request early; its output so far is kept, with finish_reason "abort"."""
        self._abort(self._output)

    def result(self, timeout: float | None = None) -> RequestOutput:
        """Block until the request is finished.

        Raises:
            TrtspecError: the request failed.
            TimeoutError: ``timeout`` seconds passed; the request goes on.
            EngineError: this is a forked child and the request had not finished before the fork.
        """
        return _checked(self.wait(timeout))

    def wait(self, timeout: float | None = None) -> RequestOutput:
        """Like `result`, but a failed request is returned with its ``error`` instead of raised."""
        self._check_process()
        with self._changed:
            if not self._changed.wait_for(lambda: self._ended, timeout):
                raise TimeoutError(f"request {self.request_id} is not finished after {timeout} s")
        return self._output

    async def aresult(self) -> RequestOutput:
        """Like `result`, without blocking the event loop. Cancelling it leaves the request
        running."""
        return _checked(await self._when(lambda: self._output if self._ended else None))

    def __await__(self) -> Generator[Any, None, RequestOutput]:
        return self._owned(self.aresult()).__await__()

    def __iter__(self) -> Iterator[RequestOutput]:
        while True:
            output = _checked(self._next())
            yield output
            if output is self._output:
                return

    async def __aiter__(self) -> AsyncIterator[RequestOutput]:
        while True:
            output = _checked(await self._owned(self._when(self._take)))
            yield output
            if output is self._output:
                return

    async def _owned(self, waiting: Coroutine[Any, Any, T]) -> T:
        """Await ``waiting``; abort the request if the task is cancelled."""
        try:
            return await waiting
        except asyncio.CancelledError:
            self.abort()
            raise

    @contextmanager
    def setting(self, event: asyncio.Event) -> Iterator[None]:
        """Set an event of the running loop after each change."""
        self._check_process()
        loop = asyncio.get_running_loop()

        def wake() -> None:
            with suppress(RuntimeError):  # that loop was closed: nobody waits any more
                loop.call_soon_threadsafe(event.set)

        with self._changed:
            self._listeners.append(wake)
        try:
            yield
        finally:
            with self._changed:
                self._listeners.remove(wake)

    def updating(self) -> AbstractContextManager[Any]:
        """Hold this while changing the output, so that no reader sees half a change, or while
        reading it."""
        return self._changed

    def publish(self, grown: CompletionOutput | None = None) -> None:
        """For the worker: the output ended, or its sequence ``grown`` grew or ended."""
        with self._changed:
            if self._output.finished:
                self._ended = True
            elif self._streaming and grown is not None:
                self._marks.append(_mark(grown, self._output.error))
            if self._ended or self._streaming:  # else waiting threads sleep till the end
                self._changed.notify_all()
            for listener in self._listeners:
                listener()

    async def _when(self, look: Callable[[], T | None]) -> T:
        """Wait until `look` finds something, asking again after each change."""
        event = asyncio.Event()
        with self.setting(event):
            while True:
                event.clear()
                with self._changed:
                    found = look()
                if found is not None:
                    return found
                await event.wait()

    def _next(self) -> RequestOutput:
        self._check_process()
        with self._changed:
            self._changed.wait_for(lambda: self._marks or self._ended)
            taken = self._take()
            assert taken is not None
            return taken

    def _take(self) -> RequestOutput | None:
        """A snapshot of the oldest unread step, or the output itself once it has ended."""
        if self._marks:
            mark = self._marks.popleft()
            self._shown[mark.index] = mark
            return _snapshot(self._output, self._shown, mark.error)
        return self._output if self._ended else None

    def _check_process(self) -> None:
        """Raise EngineError in a forked child instead of waiting for a thread that does not exist.
        Must come before any lock, which a thread of the parent may have held during the fork."""
        if self._process == os.getpid():
            return
        if not self._ended:
            raise EngineError(
                f"request {self.request_id} runs in process {self._process}, which this one "
                f"({os.getpid()}) was forked from; wait for it there"
            )
        # A forked child has this one thread: nobody holds the lock, and the old one may be held for
        # ever.
        self._changed, self._process = threading.Condition(), os.getpid()


def _mark(completion: CompletionOutput, error: TrtspecError | None) -> _Mark:
    return _Mark(
        completion.index,
        len(completion.token_ids),
        len(completion.text),
        len(completion.spec_steps or ()),
        SpeculativeMetrics.merged([completion.metrics]),
        completion.finished,
        error,
    )


def _snapshot(
    output: RequestOutput, shown: Mapping[int, _Mark], error: TrtspecError | None
) -> RequestOutput:
    """The output as it was at these marks; a sequence without a mark had not begun."""
    taken = copy.copy(output)
    taken.error = error
    taken.outputs = [_cut(completion, shown.get(completion.index)) for completion in output.outputs]
    return taken


def _cut(completion: CompletionOutput, mark: _Mark | None) -> CompletionOutput:
    """A copy of a sequence as it was at a mark."""
    if mark is None:
        return CompletionOutput(completion.index, completion.seed)
    taken = copy.copy(completion)
    taken.token_ids = completion.token_ids[: mark.tokens]
    taken.text = completion.text[: mark.chars]
    if completion.logprobs is not None:
        taken.logprobs = completion.logprobs[: mark.tokens] or None
    if completion.spec_steps is not None:
        taken.spec_steps = completion.spec_steps[: mark.steps] or None
    taken.metrics = mark.metrics
    if not mark.tokens:
        taken.first_token_time = taken.queue_time = None
        taken.num_cached_tokens = 0
    if not mark.finished:
        taken.finish_reason = taken.stop_reason = taken.finish_time = None
        taken.kv_transfer_params = None
    return taken


def _checked(output: RequestOutput) -> RequestOutput:
    if output.error is not None:
        raise fresh(output.error)
    return output


def fresh(error: TrtspecError) -> TrtspecError:
    """A copy to raise, so that the tracebacks of several callers do not pile up on one object."""
    return type(error)(*error.args)
