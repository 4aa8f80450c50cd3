"""The HTTP routes."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.responses import Response

from trtspec.llmapi.chat_options import ChatOptions
from trtspec.serve.answer import Answer, Wishes
from trtspec.serve.chat_payloads import ChatPayloads
from trtspec.serve.engine_client import Conversation, EngineFacts, GenerateRequest
from trtspec.serve.errors import ApiError, json_response
from trtspec.serve.front_end import FrontEnd
from trtspec.serve.messages import Messages
from trtspec.serve.page import page_response
from trtspec.serve.payloads import CompletionPayloads, Payloads
from trtspec.serve.response_payloads import ResponsesPayloads
from trtspec.serve.response_schemas import ResponsesRequest
from trtspec.serve.schemas import ChatRequest, CompletionRequest, ErrorResponse
from trtspec.serve.service import Status, service_of
from trtspec.serve.token_schemas import DetokenizeRequest, TokenizeRequest
from trtspec.serve.tools.message import Message
from trtspec.serve.trace import Trace
from trtspec.version import __version__

router = APIRouter()
_ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorResponse, "description": "The request is refused"},
    "5XX": {"model": ErrorResponse, "description": "The server cannot serve it"},
}


@router.post("/v1/completions", responses=_ERRORS)
async def completions(body: CompletionRequest, request: Request) -> Response:
    """Continue one prompt or several."""
    service = service_of(request)
    front_end = service.ready()
    (model, adapter), params, prompts = service.model(body.model), body.params(), body.prompts
    payloads = partial(CompletionPayloads, echo=bool(body.echo))
    front_end.check_lengths(prompts, "prompt")
    asked = GenerateRequest(tuple(prompts), params, body.priority or 0, adapter, bool(body.stream))
    return _answer(request, body, asked, model, payloads)


@router.post("/v1/chat/completions", responses=_ERRORS)
async def chat_completions(body: ChatRequest, request: Request) -> Response:
    """Answer a conversation."""
    return _chat(body, request, ChatPayloads)


@router.post("/v1/responses", responses=_ERRORS)
async def responses(body: ResponsesRequest, request: Request) -> Response:
    """Answer a conversation, in the form of OpenAI's newer API. Nothing is stored."""
    chat = body.to_chat()
    return _chat(chat, request, partial(ResponsesPayloads, asked=body.repeated()))


@router.post("/tokenize", responses=_ERRORS)
async def tokenize(body: TokenizeRequest, request: Request) -> Response:
    """The tokens of a prompt or of a conversation."""
    service = service_of(request)
    front_end = service.ready()
    intake = front_end.engine.intake
    service.model(body.model)
    if body.messages is None:
        text = body.prompt or ""
        front_end.check_lengths([text], "prompt")
        adds = body.add_special_tokens is not False
        tokens = await intake.run(intake.prompts.tokenize, text, adds)
    else:
        options = body.template_options()
        _check_conversation(front_end, body.messages, options)
        as_text = front_end.arguments_as_text(bool(body.tools))
        turns = [message.to_turn(as_text) for message in body.messages]
        tokens = await intake.run(intake.prompts.chat_tokens, turns, options)
    limit = front_end.max_seq_len
    answer = {"count": len(tokens), "max_model_len": limit, "tokens": tokens}
    if body.return_token_strs:
        answer["token_strs"] = [front_end.tokens.text(token) for token in tokens]
    return json_response(answer)


@router.post("/detokenize", responses=_ERRORS)
async def detokenize(body: DetokenizeRequest, request: Request) -> Response:
    """The text of tokens."""
    service = service_of(request)
    intake = service.ready().engine.intake
    service.model(body.model)
    return json_response({"prompt": await intake.run(intake.prompts.detokenize, body.tokens)})


@router.post("/v1/embeddings", include_in_schema=False)
async def embeddings() -> Response:
    """Refused by name: clients ask for it as they ask for models."""
    raise ApiError(404, "/v1/embeddings is not offered: only text is generated here", "not_offered")


@router.get("/v1/models", responses=_ERRORS)
async def models(request: Request) -> Response:
    """The names under which the model is served, then its adapters."""
    service = service_of(request)
    engine = service.ready().engine
    names = service.settings.model_names
    data = [_model(engine.facts, name) for name in names]
    data += [_model(engine.facts, name, parent=names[0]) for name in engine.adapters]
    return json_response({"object": "list", "data": data})


@router.get("/v1/models/{name:path}", responses=_ERRORS)
async def one_model(name: str, request: Request) -> Response:
    """One of the models."""
    service = service_of(request)
    engine = service.ready().engine
    known, adapter = service.model(name)
    parent = None if adapter is None else service.settings.model_names[0]
    return json_response(_model(engine.facts, known, parent))


@router.get("/health", responses={503: {"description": "Not ready; the body says why"}})
async def health(request: Request) -> Response:
    """Readiness: 200 when requests are served, 503 while starting, draining or after a failure."""
    service = service_of(request)
    ready = service.status is Status.READY
    state = {"status": service.status.value, "detail": service.detail}
    return json_response(state, 200 if ready else 503)


@router.get("/live")
async def live(request: Request) -> Response:
    """Liveness: 200 as long as the server's loop runs, also while an engine is being built."""
    return json_response({"status": "alive"})


@router.get("/version")
async def version() -> Response:
    """The version of trtspec."""
    return json_response({"version": __version__})


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request) -> Response:
    """Prometheus metrics."""
    return Response(await service_of(request).exposition(), media_type=CONTENT_TYPE_LATEST)


@router.get("/", include_in_schema=False)
async def page() -> Response:
    """A page to try the model with."""
    return page_response()


def _chat(body: ChatRequest, request: Request, payloads: Callable[..., Payloads]) -> Answer:
    service = service_of(request)
    front_end = service.ready()
    (model, adapter), options = service.model(body.model), body.template_options()
    _check_conversation(front_end, body.messages, options)
    reader = front_end.reader(body)
    params = body.params(reader, shows_special=front_end.hides(reader.marks))
    as_text = front_end.arguments_as_text(bool(body.offered))
    asked = Conversation([message.to_turn(as_text) for message in body.messages], options)
    is_open: list[bool] = []  # asked once a request, as prompts may be long

    def read(text: str, prompt: Sequence[int], is_whole: bool) -> Message:
        if not is_open:
            is_open.append(front_end.is_open(prompt, reader))
        return reader.read(text, is_open[0], is_whole)

    wanted = GenerateRequest((asked,), params, body.priority or 0, adapter, bool(body.stream))
    return _answer(request, body, wanted, model, partial(payloads, read=read))


def _check_conversation(
    front_end: FrontEnd, messages: Messages, options: Mapping[str, Any]
) -> None:
    """ApiError or RequestError for one that cannot fit, or is nested too deep."""
    check = front_end.check_lengths
    check(["".join(message.text for message in messages)], "messages")
    checked = ChatOptions(**options)
    check([json.dumps(dict(checked.chat_template_kwargs))], "chat_template_kwargs")
    check([json.dumps(checked.tools)], "tools")


def _answer(
    request: Request,
    body: CompletionRequest | ChatRequest,
    asked: GenerateRequest,
    model: str,
    payloads: Callable[..., Payloads],
) -> Answer:
    service = service_of(request)
    front_end = service.ready()
    wishes = Wishes(
        include_usage=body.include_usage,
        continuous_usage=body.continuous_usage,
        metrics=bool(body.return_spec_tokens_details) or service.settings.request_metrics,
        timeout=_timeout(request, service.settings.request_timeout),
    )
    request_id = Trace.of(request.scope).request_id
    shared = front_end.fingerprint, front_end.tokens, asked.params.n
    return Answer(service, asked, payloads(request_id, model, *shared), wishes)


def _timeout(request: Request, limit: float | None) -> float | None:
    """The server's limit, or the client's own (header X-Request-Timeout) if it is shorter."""
    text = request.headers.get("x-request-timeout")
    if text is None:
        return limit
    try:
        wanted = float(text)
    except ValueError:
        wanted = math.nan
    if not (math.isfinite(wanted) and wanted > 0):
        raise ApiError(
            400,
            f"the header X-Request-Timeout is {text[:32]!r}; it must be seconds above 0",
            "invalid_value",
            "X-Request-Timeout",
        )
    return wanted if limit is None else min(wanted, limit)


def _model(facts: EngineFacts, name: str, parent: str | None = None) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": _STARTED,
        "owned_by": "trtspec",
        "root": name,
        "parent": parent,
        "max_model_len": facts.limits.max_seq_len,
        "draft_sources": list(facts.draft_sources),
    }


_STARTED = int(time.time())
