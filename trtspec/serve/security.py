"""Checks before a request is read: API key, size limit and method."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trtspec.serve.errors import ApiError

_OPEN = {"/", "/health", "/live", "/version", "/metrics", "/openapi.json"}


class ApiKeyGuard:
    """Requires a bearer token everywhere except for probes, metrics and the start page."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and path_of(scope) not in _OPEN and not self._knows(scope):
            error = ApiError(
                401, "the API key is missing or wrong; send it as a bearer token", "invalid_api_key"
            )
            await error.response()(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _knows(self, scope: Scope) -> bool:
        kind, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
        given = _digest(token.strip().encode())
        # All keys are compared, and digests of one length, so that time tells nothing of them.
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]
        return kind.lower() == "bearer" and any(matches)


class HeadAsGet:
    """Answers HEAD like GET where there is a GET; the HTTP server omits the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send)


class BodyLimit:
    """Refuses bodies above a size: immediately if their announced length exceeds it, otherwise when
    they do."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdecimal() and int(announced[:20]) > self._max_bytes:
            await self._refusal().response()(scope, receive, send)
            return
        received = 0

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
                if received > self._max_bytes:
                    # FastAPI, which reads the body, lets only its own kind of error through.
                    raise HTTPException(413, str(self._refusal()))
            return message

        await self._app(scope, limited, send)

    def _refusal(self) -> ApiError:
        return ApiError(
            413, f"the body exceeds {self._max_bytes} bytes (--max-body-bytes)", "body_too_large"
        )


def path_of(scope: Scope) -> str:
    """The path without the prefix that a proxy added."""
    return str(scope["path"]).removeprefix(scope.get("root_path", ""))


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
