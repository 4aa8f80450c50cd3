"""AccessLog: gives every request an id, counts it and logs it."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trtspec.log import logger
from trtspec.serve.errors import api_error
from trtspec.serve.logs import log_event
from trtspec.serve.metrics import ServerMetrics
from trtspec.serve.security import path_of
from trtspec.serve.trace import Trace

_METHODS = {"GET", "POST", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE"}


class AccessLog:
    """The outermost middleware. It never logs prompts or texts."""

    def __init__(
        self, app: ASGIApp, metrics: ServerMetrics, paths: Collection[str], log_requests: bool
    ) -> None:
        """Metrics count `paths` by name and all others together; requests under /v1 are logged if
        `log_requests`."""
        self._app, self._metrics, self._paths = app, metrics, paths
        self._log_requests = log_requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        trace = Trace.begin(scope, Headers(scope=scope).get("x-request-id"))

        async def identified(message: Message) -> None:
            if message["type"] == "http.response.start":
                trace.status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = trace.request_id
            await send(message)

        try:
            await self._app(scope, receive, identified)
        except Exception as error:
            # Handlers inside see to expected errors; this one is a bug, or came from a middleware.
            failure = api_error(error)
            if failure.code == "internal_error":
                logger.exception("request %s failed", trace.request_id)
            if trace.status is None:
                await failure.response()(scope, receive, identified)
        finally:
            path = path_of(scope)
            handler = path if path in self._paths else "other"
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._metrics.http(method, handler, trace.status or 500)
            if self._log_requests and path.startswith("/v1/"):
                self._log(trace, scope["method"], path if path in self._paths else "other path")

    @staticmethod
    def _log(trace: Trace, method: str, path: str) -> None:
        fields: dict[str, Any] = {"request_id": trace.request_id, "method": method, "path": path}
        fields |= {"status": trace.status, "seconds": round(trace.seconds, 4), **trace.fields}
        message = f"{fields.get('id', trace.request_id)} {method} {path} {trace.status}"
        message += f" in {trace.seconds:.2f} s"
        if "completion_tokens" in fields:
            message += (
                f", {fields['prompt_tokens']} + {fields['completion_tokens']} tokens, "
                f"{fields['finish_reason']}, acceptance length {fields['acceptance_length']:.2f}"
            )
        if fields.get("code"):
            message += f", {fields['code']}" + (f" ({fields['param']})" if fields["param"] else "")
        if "error" in fields:
            message += f": {fields['error']}"
        failed = trace.status is None or trace.status >= 500 or "error" in trace.fields
        log_event(message, fields, logging.WARNING if failed else logging.INFO)
