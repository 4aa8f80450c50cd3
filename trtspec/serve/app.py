"""make_app: the ASGI application of a server over one engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from trtspec.errors import TrtspecError
from trtspec.serve.access import AccessLog
from trtspec.serve.adapters import adapter_router
from trtspec.serve.engine_client import EngineClient
from trtspec.serve.errors import ApiError, api_error
from trtspec.serve.findings import said_of
from trtspec.serve.lifecycle import Lifecycle
from trtspec.serve.routes import router
from trtspec.serve.security import ApiKeyGuard, BodyLimit, HeadAsGet
from trtspec.serve.service import Service
from trtspec.serve.settings import ServeSettings
from trtspec.serve.trace import Trace
from trtspec.version import __version__

_PATHS = {
    "/", "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/models",
    "/tokenize", "/detokenize", "/health", "/live", "/version", "/metrics", "/openapi.json",
    "/v1/load_lora_adapter", "/v1/unload_lora_adapter",
}  # fmt: skip
# Names that pydantic puts into the place of an error for the branches of a union.
_BRANCHES = {"body", "str", "int", "NamedTool", "FlatToolName"}


def make_app(
    settings: ServeSettings, open_engine: Callable[[], EngineClient]
) -> tuple[ASGIApp, Lifecycle]:
    """The application; its lifespan events drive the life cycle.

    ``open_engine`` is called in a thread at startup; until it returns, requests get 503.
    """
    service = Service(settings)
    lifecycle = Lifecycle(service, open_engine)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with lifecycle.running():
            yield

    # The interactive pages are left out: they load scripts from elsewhere.
    api = FastAPI(
        title="trtspec",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    api.state.service = service
    api.include_router(router)
    api.include_router(adapter_router)
    api.add_exception_handler(RequestValidationError, _invalid)
    api.add_exception_handler(HTTPException, _http)
    for kind in (TrtspecError, Exception):
        api.add_exception_handler(kind, _refused)

    app: ASGIApp = HeadAsGet(api)
    app = BodyLimit(app, settings.max_body_bytes)
    if settings.api_keys:
        app = ApiKeyGuard(app, settings.api_keys)
    if settings.allowed_origins:
        app = CORSMiddleware(
            app,
            allow_origins=settings.allowed_origins,
            allow_methods=["GET", "HEAD", "POST"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after"],
        )
    return AccessLog(app, service.metrics, _PATHS, settings.log_requests), lifecycle


async def _refused(request: Request, error: Exception) -> Response:
    return _told(request, api_error(error))


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = str(error.detail)
    if error.status_code in (404, 405):
        offered = ", ".join(sorted(_PATHS))
        message = f"{request.method} {request.url.path[:128]} is not offered; there are {offered}"
    return _told(request, ApiError(error.status_code, message, headers=error.headers))


async def _invalid(request: Request, error: Exception) -> Response:
    """Turn pydantic's findings into one: among the branches of a union, a finding about a value of
    the right kind, otherwise the deepest one, and the last of those."""
    assert isinstance(error, RequestValidationError)
    finding = max(error.errors(), key=_weight)
    place = ""
    for step in finding["loc"]:
        if isinstance(step, int):
            place += f"[{step}]"
        elif step not in _BRANCHES and step.isidentifier() and len(step) <= 64:
            place += f".{step}" if place else step
    reason = said_of(finding)
    if finding["type"] == "json_invalid":
        place, reason = "", f"the body is not JSON: {finding['ctx']['error']}"
    elif place:
        reason = f"{place}: {reason}"
    elif finding["loc"] == ("body",) and finding["type"] in ("missing", "model_attributes_type"):
        reason = "the body must be a JSON object (Content-Type: application/json)"
    return _told(request, ApiError(400, reason, "invalid_value", place or None))


def _weight(finding: Mapping[str, Any]) -> tuple[bool, int, int]:
    loc = finding["loc"]
    is_of_kind = not finding["type"].endswith(("_type", "_parsing", "_instance"))
    return is_of_kind, len(loc), loc[-1] if loc and isinstance(loc[-1], int) else -1


def _told(request: Request, failure: ApiError) -> Response:
    """The response, with what may be logged about it: the message may repeat the request's text."""
    Trace.of(request.scope).fields |= {"code": failure.code, "param": failure.param}
    return failure.response()
