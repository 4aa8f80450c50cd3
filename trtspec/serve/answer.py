"""Answer: serves one generation request, whole or streamed, and ends it early when necessary."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from trtspec.config.sampling import SamplingParams
from trtspec.llmapi.handle import GenerationHandle
from trtspec.log import logger
from trtspec.serve.engine import Engine
from trtspec.serve.errors import ApiError, api_error, json_response
from trtspec.serve.payloads import Payloads, speculation, usage
from trtspec.serve.service import Service
from trtspec.serve.trace import CLIENT_GONE, Trace

_LAST_WORD_SECONDS = 5.0
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # or a proxy may hold tokens back
]


@dataclass(frozen=True)
class Wishes:
    """How a client wants its answer. `timeout`: a limit in seconds, or None."""

    stream: bool
    include_usage: bool
    continuous_usage: bool
    metrics: bool
    timeout: float | None


class Answer(Response):
    """Starts `submit` once there is room, and ends it early if the client disconnects, the time is
    up, or the server must stop. The HTTP status is sent with the first token, so a request that
    fails earlier gets a proper error status, and one that fails later an error event. A stream that
    waits longer than that, as in a long queue, starts with a comment and repeats it during silence,
    since clients and proxies drop silent connections."""

    def __init__(
        self,
        service: Service,
        engine: Engine,
        submit: Callable[[], list[GenerationHandle]],
        params: SamplingParams,
        sequences: int,
        payloads: Payloads,
        wishes: Wishes,
    ) -> None:
        super().__init__()
        self._service, self._engine = service, engine
        self._submit, self._params = submit, params
        self._sequences, self._payloads, self._wishes = sequences, payloads, wishes
        self._num_finished = 0
        self._num_sent = 0  # tokens
        self._began = False
        self._sending = asyncio.Lock()
        self._num_writes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        trace = Trace.of(scope)
        trace.fields["id"] = self._payloads.id
        work = asyncio.create_task(self._serve(trace, scope, receive, send))
        gone = asyncio.create_task(_disconnected(receive))
        interrupt, limit = self._service.interrupt, self._wishes.timeout
        try:
            ends: set[asyncio.Future[Any]] = {work, gone, interrupt}
            done, _ = await asyncio.wait(ends, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (work, gone):
                task.cancel()
            await asyncio.wait({work, gone})
        error: ApiError | None
        if work in done:
            error = self._failure(work)
        elif gone in done:
            trace.status, error = CLIENT_GONE, None
        elif interrupt in done:
            error = interrupt.result()
        else:
            error = ApiError(504, f"the request was not done after {limit:g} s", "request_timeout")
        if error is not None:
            trace.fields["error"] = str(error)
            # A client that reads nothing must not keep the server from going on.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WORD_SECONDS):
                    await self._fail(error, scope, receive, send)

    async def _serve(self, trace: Trace, scope: Scope, receive: Receive, send: Send) -> None:
        with self._service.gate.enter(self._sequences):
            handles = await self._engine.start(self._submit, self._params)
            try:
                if self._wishes.stream:
                    await self._stream(handles, send)
                else:
                    await self._whole(handles, scope, receive, send)
                self._service.gate.observe(trace.seconds)
            finally:
                outputs = [handle.output for handle in handles]
                for handle in handles:
                    if not handle.output.finished:
                        handle.abort()
                trace.fields |= usage(outputs)
                reasons = [c.finish_reason or "abort" for o in outputs for c in o.outputs]
                trace.fields["finish_reason"] = ",".join(sorted(set(reasons)))
                trace.fields["engine_ids"] = [output.request_id for output in outputs]
                figures = speculation(outputs)["speculative_decoding"]
                trace.fields["acceptance_length"] = round(figures["acceptance_length"], 3)
                self._service.metrics.finished(outputs, trace.arrival)

    async def _whole(
        self, handles: Sequence[GenerationHandle], scope: Scope, receive: Receive, send: Send
    ) -> None:
        outputs = [await handle for handle in handles]
        if any(c.finish_reason == "abort" for output in outputs for c in output.outputs):
            raise _shut_down()
        response = json_response(self._payloads.whole(outputs, self._wishes.metrics))
        self._began = True
        await response(scope, receive, send)

    async def _stream(self, handles: Sequence[GenerationHandle], send: Send) -> None:
        pumps = [
            asyncio.create_task(self._pump(i, handle, handles, send))
            for i, handle in enumerate(handles)
        ]
        comments = asyncio.create_task(self._say_that_it_waits(send))
        try:
            await asyncio.gather(*pumps)
        finally:
            for task in (*pumps, comments):
                task.cancel()
            await asyncio.wait([comments])
        if self._wishes.include_usage:
            outputs = [handle.output for handle in handles]
            last = self._payloads.chunk([], outputs, usage=usage(outputs))
            await self._write(send, self._payloads.encode(last))
        await self._send_end(send)

    async def _pump(
        self,
        prompt: int,
        handle: GenerationHandle,
        handles: Sequence[GenerationHandle],
        send: Send,
    ) -> None:
        """Send what one prompt's sequences gain, one chunk per sequence."""
        opening = self._payloads.opening(prompt)
        async for grown in handle.growth():
            if any(g.finish_reason == "abort" for g in grown):
                raise _shut_down()
            if handle.output.error is not None:
                continue  # the iteration raises it next
            self._num_finished += sum(g.finish_reason is not None for g in grown)
            self._num_sent += sum(len(g.token_ids) for g in grown)
            is_last = self._num_finished == self._sequences
            choices = opening + self._payloads.growth(prompt, grown, handle.output)
            opening = []
            outputs = [h.output for h in handles]
            chunks = []
            for i, choice in enumerate(choices):
                more: dict[str, Any] = {}
                if self._wishes.include_usage:
                    more["usage"] = None
                    if self._wishes.continuous_usage:
                        # Not what the engine has by now, but what the client has.
                        more["usage"] = usage(outputs, self._num_sent)
                if self._wishes.metrics and is_last and i == len(choices) - 1:
                    more["metrics"] = speculation(outputs)
                chunks.append(self._payloads.chunk([choice], outputs, **more))
            await self._write(send, b"".join(map(self._payloads.encode, chunks)))

    async def _say_that_it_waits(self, send: Send) -> None:
        """Send a comment whenever nothing was written for a while."""
        seconds = self._service.settings.first_comment
        while True:
            written = self._num_writes
            await asyncio.sleep(seconds)
            if self._num_writes == written:
                await self._write(send, b": waiting\n\n")
            seconds = self._service.settings.comment_interval

    async def _write(self, send: Send, body: bytes) -> None:
        """Write part of a stream atomically, since a request's sequences and the comments share
        it."""
        async with self._sending:
            self._num_writes += 1
            if not self._began:
                self._began = True
                await send(
                    {"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS}
                )
            await send({"type": "http.response.body", "body": body, "more_body": True})

    def _failure(self, work: asyncio.Task[None]) -> ApiError | None:
        error = work.exception()
        if error is None:
            return None
        failure = api_error(error)
        if failure.code == "internal_error":
            logger.error("request %s failed", self._payloads.id, exc_info=error)
        return failure

    async def _fail(self, error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._began:
            self._began = True
            await error.response()(scope, receive, send)
        elif self._wishes.stream:
            failure = self._payloads.failure(error)
            await self._write(send, self._payloads.encode(failure))
            await self._send_end(send)

    async def _send_end(self, send: Send) -> None:
        last = {"type": "http.response.body", "body": self._payloads.done, "more_body": False}
        await send(last)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _shut_down() -> ApiError:
    return ApiError(503, "the server shut down before the text was complete", "server_stopped")
