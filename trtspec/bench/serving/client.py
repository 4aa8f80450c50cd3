"""The HTTP client: one streamed request, and the few other things a server is asked.

The only module that imports httpx, which the extra ``trtspec[bench]`` brings.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from trtspec.bench.serving.answer import AnswerReader, RequestRecord, error_message
from trtspec.bench.serving.sse import AnswerError
from trtspec.errors import ConfigError

if HAS_HTTPX := find_spec("httpx") is not None:
    import httpx

SIDE_TIMEOUT = 10.0
"""Seconds for anything but a request of the load."""
_REST_TIMEOUT = 1.0  # from the end mark of a stream to the end of its response
_MAX_ERROR_BYTES = 1 << 16


class ServeClient:
    """Connections to one server; an asynchronous context manager.

    base_url: with or without a last ``/v1``. timeout: seconds from sending a request to its last
    byte; a request that takes longer has failed. clock: seconds, for every time that is reported.

    Raises:
        ConfigError: httpx is missing, or the URL is none.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        timeout: float = 600.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if not HAS_HTTPX:
            raise ConfigError(
                "the benchmark client needs httpx; install it with: pip install 'trtspec[bench]'"
            )
        self.root = _root(base_url)
        self.clock = clock
        self._timeout = timeout
        # The end of a request is watched below, as a whole; no part of it has a limit of its own.
        # Compressed streams would be held back by whoever compresses them.
        headers = {"Accept-Encoding": "identity"}
        if api_key is not None:
            if not (api_key.isascii() and api_key.isprintable() and api_key):
                raise ConfigError("the API key may hold printable ASCII only")
            headers["Authorization"] = f"Bearer {api_key}"
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        # A proxy of the environment is for other machines; it would be measured along.
        host = urlsplit(self.root).hostname or ""
        is_local = host in ("localhost", "::1") or host.startswith("127.")
        self._http = httpx.AsyncClient(
            headers=headers, timeout=None, limits=limits, trust_env=not is_local
        )

    async def __aenter__(self) -> ServeClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def generate(
        self, endpoint: str, body: Mapping[str, Any], index: int, began: float
    ) -> RequestRecord:
        """Send one streaming request and read its answer.

        ``began``: the run's start on the clock, which the record's own start is counted from. What
        goes wrong is in the record's `error`; only cancellation is raised.
        """
        request = self._http.build_request("POST", self.root + endpoint, json=body)
        start = self.clock() - began
        reader = AnswerReader(index, start)
        try:
            async with asyncio.timeout(self._timeout):
                return await self._read(request, reader, began)
        except AnswerError as e:
            return RequestRecord(index, start, error=str(e))
        except TimeoutError:
            error = f"no whole answer within {self._timeout:g} s"
        except httpx.ConnectError as e:
            error = f"cannot connect: {e}"
        except httpx.HTTPError as e:
            error = f"the connection broke: {str(e) or type(e).__name__}"
        if reader.is_complete:  # only the stream's own end is missing
            return reader.record()
        return RequestRecord(index, start, error=error)

    async def _read(
        self, request: httpx.Request, reader: AnswerReader, began: float
    ) -> RequestRecord:
        response = await self._http.send(request, stream=True)
        try:
            if response.status_code != 200:
                raise AnswerError(await _refusal(response))
            kind = response.headers.get("content-type", "")
            if "event-stream" not in kind:
                raise AnswerError(f"the answer is no event stream but {kind or 'of no type'}")
            chunks = response.aiter_bytes()
            async for chunk in chunks:
                reader.feed(chunk, self.clock() - began)
                if reader.is_done:
                    # Reading on to the response's end keeps the connection for the next request.
                    try:
                        async with asyncio.timeout(_REST_TIMEOUT):
                            async for _ in chunks:
                                pass
                    except (TimeoutError, httpx.HTTPError):
                        pass
                    break
            return reader.close(self.clock() - began)
        finally:
            await response.aclose()

    async def first_model(self) -> str:
        """The first entry of /v1/models; ConfigError if there is none to be had."""
        url = f"{self.root}/v1/models"
        try:
            response = await self._http.get(url, timeout=SIDE_TIMEOUT)
        except httpx.HTTPError as error:
            raise ConfigError(
                f"no server answers at {self.root}: {str(error) or type(error).__name__}"
            ) from error
        if response.status_code != 200:
            remedies = {401: "give --api-key", 503: "wait until the server is ready"}
            raise ConfigError(
                f"{url} answers {response.status_code} ({_body_message(response.content)}); "
                + remedies.get(response.status_code, "give --model")
            )
        try:
            return str(response.json()["data"][0]["id"])
        except (ValueError, LookupError, TypeError) as error:
            raise ConfigError(f"{url} names no model; give --model") from error

    async def version(self) -> str | None:
        """What /version says, where there is such a thing."""
        try:
            version = json.loads(await self._text("/version") or "null").get("version")
        except (ValueError, AttributeError):
            return None
        return None if version is None else str(version)

    async def metrics(self) -> str | None:
        """The text of /metrics, where there is such a thing."""
        return await self._text("/metrics")

    async def _text(self, path: str) -> str | None:
        try:
            response = await self._http.get(self.root + path, timeout=SIDE_TIMEOUT)
        except httpx.HTTPError:
            return None
        return response.text if response.status_code == 200 else None


def shown_url(base_url: str) -> str:
    """The URL without a user name and password in it."""
    return re.sub(r"(?<=://)[^/@]*@", "", base_url)


def _root(base_url: str) -> str:
    try:
        parts = urlsplit(base_url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # the port is no number
        good = False
    if not good or parts.query or parts.fragment:
        raise ConfigError(
            f"base_url {shown_url(base_url)!r} is not a URL such as http://127.0.0.1:8000"
        )
    return base_url.rstrip("/").removesuffix("/v1").rstrip("/")


async def _refusal(response: httpx.Response) -> str:
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > _MAX_ERROR_BYTES:
            break
    return f"HTTP {response.status_code}: {_body_message(bytes(body))}"


def _body_message(body: bytes) -> str:
    text = body.decode(errors="replace").strip()
    try:
        return error_message(json.loads(text))
    except ValueError:
        return error_message(text) or "no reason given"
