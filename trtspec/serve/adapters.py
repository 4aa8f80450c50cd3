"""Adapters of the server: what a client may name as its model, and the routes that load more."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from trtspec.errors import CheckpointError
from trtspec.serve.body import Body
from trtspec.serve.errors import ApiError, json_response
from trtspec.serve.service import Service, service_of

adapter_router = APIRouter()
Name = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$")]


class LoadAdapter(Body):
    """``lora_path``: a folder below that of ``--lora-dir``."""

    lora_name: Name
    lora_path: Annotated[str, Field(min_length=1, max_length=4096)]


class UnloadAdapter(Body):
    lora_name: Name


@adapter_router.post("/v1/load_lora_adapter")
async def load_lora_adapter(body: LoadAdapter, request: Request) -> Response:
    """Load an adapter, which requests name as their model from then on."""
    service = service_of(request)
    engine, root = service.ready().engine, _root(service)
    if body.lora_name in service.settings.model_names:
        raise _refused(f"{body.lora_name!r} is the name of the model itself; choose another")
    folder = _confined(root, body.lora_path)
    try:
        await engine.load_adapter(body.lora_name, str(folder))
    except CheckpointError as error:
        raise _refused(str(error)) from error
    return json_response({"status": "loaded", "lora_name": body.lora_name})


@adapter_router.post("/v1/unload_lora_adapter")
async def unload_lora_adapter(body: UnloadAdapter, request: Request) -> Response:
    """Forget an adapter; requests that have it go on."""
    service = service_of(request)
    engine = service.ready().engine
    _root(service)
    if body.lora_name not in engine.adapters:
        service.model(body.lora_name)
        raise _refused(f"{body.lora_name!r} is the model itself, no adapter")
    await engine.unload_adapter(body.lora_name)
    return json_response({"status": "unloaded", "lora_name": body.lora_name})


def _root(service: Service) -> Path:
    """The folder of adapters that clients may load."""
    if service.settings.lora_dir is None:
        raise ApiError(
            403,
            "this server does not let clients load or unload adapters; start it with --lora-dir",
            "not_allowed",
        )
    return Path(service.settings.lora_dir).expanduser().resolve()


def _confined(root: Path, path: str) -> Path:
    """A folder below ``root``, wherever links lead."""
    refusal = _refused(
        f"lora_path {path[:128]!r} is no folder below the server's --lora-dir", "lora_path"
    )
    try:
        folder = (root / path).resolve(strict=True)
    except (OSError, RuntimeError, ValueError):  # none; links in a circle; no path at all
        raise refusal from None
    if not folder.is_relative_to(root) or not folder.is_dir():
        raise refusal
    return folder


def _refused(message: str, param: str = "lora_name") -> ApiError:
    return ApiError(400, message, "invalid_value", param)
