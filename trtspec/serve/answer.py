"""Answer: serves one generation request, whole or streamed, and ends it early when necessary."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from trtspec.llmapi.outputs import CompletionOutput, RequestOutput
from trtspec.log import logger
from trtspec.serve.engine_client import GenerateRequest
from trtspec.serve.errors import ApiError, api_error, json_response
from trtspec.serve.payloads import Payloads, speculation, usage
from trtspec.serve.service import Service
from trtspec.serve.trace import CLIENT_GONE, Trace

Gains: TypeAlias = AsyncIterator[list[RequestOutput]]
_LAST_WORD_SECONDS = 5.0
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # or a proxy may hold tokens back
]


@dataclass(frozen=True)
class Wishes:
    """How a client wants its answer. `timeout`: a limit in seconds, or None."""

    include_usage: bool
    continuous_usage: bool
    metrics: bool
    timeout: float | None


class Outputs:
    """What has come of a request. all: by prompt."""

    def __init__(self, accepted: Sequence[RequestOutput]) -> None:
        self.all = accepted
        self._places = {output.request_id: place for place, output in enumerate(accepted)}

    @property
    def finished(self) -> bool:
        return all(output.finished for output in self.all)

    def take_in(
        self, gained: Sequence[RequestOutput]
    ) -> Iterator[tuple[int, Sequence[CompletionOutput]]]:
        """Add what was gained, prompt by prompt; returns the prompt and what its sequences gained,
        unless one failed, which the engine raises next.

        Raises:
            ApiError: 503 if the engine was shut down.
        """
        for each in gained:
            place = self._places[each.request_id]
            self.all[place].add(each)
            reasons = {completion.finish_reason for completion in each.outputs}
            if "abort" in reasons:
                message = "the server shut down before the text was complete"
                raise ApiError(503, message, "server_stopped")
            if "error" not in reasons:
                yield place, each.outputs


class Answer(Response):
    """Has a request generated once there is room, and ends it early if the client disconnects, the
    time is up, or the server must stop. The HTTP status is sent with the first token, so a request
    that fails earlier gets a proper error status, and one that fails later an error event. A stream
    that waits longer than that, as in a long queue, starts with a comment and repeats it during
    silence, since clients and proxies drop silent connections."""

    def __init__(
        self, service: Service, request: GenerateRequest, payloads: Payloads, wishes: Wishes
    ) -> None:
        super().__init__()
        self._service, self._request = service, request
        self._engine = service.ready().engine
        self._payloads, self._wishes = payloads, wishes
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
        with self._service.gate.enter(len(self._request.prompts) * self._request.params.n):
            async with contextlib.aclosing(self._engine.generate(self._request)) as gains:
                outputs = Outputs(await anext(gains))
                try:
                    if self._request.stream:
                        await self._stream(gains, outputs, send)
                    else:
                        await self._whole(gains, outputs, scope, receive, send)
                    self._service.gate.observe(trace.seconds)
                finally:
                    self._report(trace, outputs)

    async def _whole(
        self, gains: Gains, outputs: Outputs, scope: Scope, receive: Receive, send: Send
    ) -> None:
        async for gained in gains:
            for _ in outputs.take_in(gained):
                pass
        response = json_response(self._payloads.whole(outputs.all, self._wishes.metrics))
        self._began = True
        await response(scope, receive, send)

    async def _stream(self, gains: Gains, outputs: Outputs, send: Send) -> None:
        openings = [self._payloads.opening(prompt) for prompt in range(len(outputs.all))]
        comments = asyncio.create_task(self._say_that_it_waits(send))
        try:
            async for gained in gains:
                for prompt, completions in outputs.take_in(gained):
                    choices = self._payloads.growth(prompt, completions, outputs.all[prompt])
                    opening, openings[prompt] = openings[prompt], []
                    await self._write(send, self._chunks(opening + choices, outputs))
        finally:
            comments.cancel()
            await asyncio.wait([comments])
        if self._wishes.include_usage:
            last = self._payloads.chunk([], outputs.all, usage=usage(outputs.all))
            await self._write(send, self._payloads.encode(last))
        await self._send_end(send)

    def _chunks(self, choices: Sequence[dict[str, Any]], outputs: Outputs) -> bytes:
        """A chunk for each of the choices."""
        chunks = []
        for i, choice in enumerate(choices):
            more: dict[str, Any] = {}
            if self._wishes.include_usage:
                more["usage"] = usage(outputs.all) if self._wishes.continuous_usage else None
            if self._wishes.metrics and outputs.finished and i == len(choices) - 1:
                more["metrics"] = speculation(outputs.all)
            chunks.append(self._payloads.chunk([choice], outputs.all, **more))
        return b"".join(map(self._payloads.encode, chunks))

    def _report(self, trace: Trace, outputs: Outputs) -> None:
        """Note the request's figures, as far as it came."""
        trace.fields |= usage(outputs.all)
        reasons = [c.finish_reason or "abort" for o in outputs.all for c in o.outputs]
        trace.fields["finish_reason"] = ",".join(sorted(set(reasons)))
        trace.fields["engine_ids"] = [output.request_id for output in outputs.all]
        figures = speculation(outputs.all)["speculative_decoding"]
        trace.fields["acceptance_length"] = round(figures["acceptance_length"], 3)
        self._service.metrics.finished(outputs.all, trace.arrival)

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
        elif self._request.stream:
            failure = self._payloads.failure(error)
            await self._write(send, self._payloads.encode(failure))
            await self._send_end(send)

    async def _send_end(self, send: Send) -> None:
        last = {"type": "http.response.body", "body": self._payloads.done, "more_body": False}
        await send(last)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
