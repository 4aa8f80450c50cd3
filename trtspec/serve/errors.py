"""ApiError: an error in the form that OpenAI's clients expect, with its HTTP status."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from trtspec.errors import PromptTooLongError, RequestError, TrtspecError
from trtspec.serve.engine_client import EngineLostError
from trtspec.serve.schemas import ChatRequest, CompletionRequest

CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
RETRY_SECONDS = 5.0
"""After which a client may find a server ready, or another replica in place of a lost one."""
_FIELDS = {*CompletionRequest.model_fields, *ChatRequest.model_fields}
# How an error begins that names the field at fault, and the place in it.
_FAULT = re.compile(r"(?:[A-Za-z]+: )?`?([a-z_]+)\b((?:\[\d+\]|\.[a-z_]+)*)")
_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class ApiError(TrtspecError):
    """An answer other than 200.

    status: the HTTP status. param: the field of the request at fault, if any. code: an identifier
    for programs. retry_after: seconds after which a retry makes sense.
    """

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.retry_after = retry_after
        self._headers = dict(headers or {})

    def to_dict(self) -> dict[str, Any]:
        """OpenAI's error object."""
        kind = _TYPES.get(
            self.status, "invalid_request_error" if self.status < 500 else "server_error"
        )
        details = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": details}

    @property
    def headers(self) -> dict[str, str]:
        headers = dict(self._headers)
        if self.retry_after is not None:
            headers["Retry-After"] = str(max(math.ceil(self.retry_after), 1))
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return headers

    def response(self) -> Response:
        return json_response(self.to_dict(), self.status, self.headers)


def api_error(error: BaseException) -> ApiError:
    """Any failure of a request as an answer: 400 if the request is at fault, 503 if its engine was
    lost, otherwise 500."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, PromptTooLongError):
        return ApiError(400, str(error), CONTEXT_LENGTH_EXCEEDED)
    if isinstance(error, RequestError):
        named = _FAULT.match(str(error))
        param = named[1] + named[2] if named and named[1] in _FIELDS else None
        return ApiError(400, str(error), "invalid_value", param)
    if isinstance(error, EngineLostError):
        return ApiError(503, str(error), "engine_lost", retry_after=RETRY_SECONDS)
    if isinstance(error, TrtspecError):
        return ApiError(500, str(error), "engine_error")
    return ApiError(500, f"the server failed: {type(error).__name__}", "internal_error")


def to_json(content: Any) -> bytes:
    """JSON in UTF-8. Lone surrogates stay escaped, as they were received."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", errors="backslashreplace")


def json_response(
    content: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(to_json(content), status, headers, media_type="application/json")
