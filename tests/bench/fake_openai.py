"""An OpenAI-compatible server that answers as a test tells it to, in a thread of its own."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

Json = dict[str, Any]


class Exchange:
    """One request of the load: what was asked, and the means to answer it."""

    def __init__(self, path: str, headers: dict[str, str], body: Json, out: Any) -> None:
        self.path, self.headers, self.body = path, headers, body
        self._out: asyncio.StreamWriter = out
        self.closes = False

    @property
    def text(self) -> str:
        """The prompt, of either endpoint."""
        return self.body["prompt"] if "prompt" in self.body else self.body["messages"][0]["content"]

    async def reply(self, status: int, body: str, kind: str = "application/json") -> None:
        data = body.encode()
        head = f"HTTP/1.1 {status} x\r\ncontent-type: {kind}\r\ncontent-length: {len(data)}\r\n\r\n"
        self._out.write(head.encode() + data)
        await self._out.drain()

    async def open(self) -> None:
        """Begin an event stream."""
        self._out.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        await self._out.drain()

    async def send(self, data: bytes) -> None:
        """Bytes of the stream, as one piece on the wire."""
        self._out.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await self._out.drain()

    async def event(self, **fields: Any) -> None:
        await self.send(b"data: " + json.dumps(fields, ensure_ascii=False).encode() + b"\n\n")

    async def tokens(self, *texts: str, pause: float = 0.0, reason: str | None = "length") -> None:
        """An event for each text, the last one with the finish reason."""
        for i, text in enumerate(texts):
            end = reason if i == len(texts) - 1 else None
            piece = {"text": text} if "prompt" in self.body else {"delta": {"content": text}}
            await self.event(choices=[{"index": 0, **piece, "finish_reason": end}])
            await asyncio.sleep(pause)

    async def usage(self, prompt: int, completion: int) -> None:
        await self.event(
            choices=[], usage={"prompt_tokens": prompt, "completion_tokens": completion}
        )

    async def end(self, mark: bool = True) -> None:
        if mark:
            await self.send(b"data: [DONE]\n\n")
        self._out.write(b"0\r\n\r\n")
        await self._out.drain()

    def cut(self) -> None:
        """Break the connection."""
        self.closes = True
        self._out.transport.abort()


Behaviour = Callable[[Exchange], Awaitable[None]]


async def well(exchange: Exchange) -> None:
    """Three events, four tokens."""
    await exchange.open()
    await exchange.tokens("a", "bc", "d")
    await exchange.usage(7, 4)
    await exchange.end()


class FakeServer:
    """Counts what comes in; `metrics`, where given, yields the texts of /metrics one by one."""

    def __init__(self, behave: Behaviour, metrics: Iterator[str] | None = None) -> None:
        self.behave, self.metrics = behave, metrics
        self.exchanges: list[Exchange] = []
        self.gets: list[tuple[str, dict[str, str]]] = []
        self.now = self.most = self.connections = self.broken = 0
        self.url = ""

    @property
    def texts(self) -> list[str]:
        return [exchange.text for exchange in self.exchanges]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            async for exchange in self._requests(reader, writer):
                if exchange.body:
                    self.exchanges.append(exchange)
                    self.now += 1
                    self.most = max(self.most, self.now)
                    try:
                        await self.behave(exchange)
                    finally:
                        self.now -= 1
                else:
                    await self._get(exchange)
                if exchange.closes:
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            self.broken += 1
        finally:
            writer.close()

    async def _requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> AsyncIterator[Exchange]:
        while True:
            try:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            except asyncio.IncompleteReadError:
                return  # the client has gone
            headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in head[1:] if line)}
            data = await reader.readexactly(int(headers.get("content-length", 0)))
            yield Exchange(head[0].split()[1], headers, json.loads(data or b"{}"), writer)

    async def _get(self, exchange: Exchange) -> None:
        self.gets.append((exchange.path, exchange.headers))
        if exchange.path == "/v1/models":
            await exchange.reply(200, '{"data": [{"id": "fake-1"}, {"id": "fake-2"}]}')
        elif exchange.path == "/version":
            await exchange.reply(200, '{"version": "9.9"}')
        elif exchange.path == "/metrics" and self.metrics is not None:
            await exchange.reply(200, next(self.metrics), "text/plain")
        else:
            await exchange.reply(404, '{"detail": "Not Found"}')


@contextmanager
def fake_server(
    behave: Behaviour = well, metrics: Iterator[str] | None = None
) -> Iterator[FakeServer]:
    """A server on a free port of the loopback."""
    server, is_up = FakeServer(behave, metrics), threading.Event()
    loop: asyncio.AbstractEventLoop
    stop: asyncio.Event

    async def serve() -> None:
        nonlocal loop, stop
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        listening = await asyncio.start_server(server._serve, "127.0.0.1", 0)
        server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        is_up.set()
        await stop.wait()
        listening.close()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    assert is_up.wait(10)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
