"""Service: the state that the parts of a running server share, and whether it may serve."""

from __future__ import annotations

import asyncio
from enum import Enum

from starlette.requests import Request

from trtspec.log import logger
from trtspec.serve.engine_client import EngineClient
from trtspec.serve.errors import RETRY_SECONDS, ApiError
from trtspec.serve.front_end import FrontEnd
from trtspec.serve.gate import Gate
from trtspec.serve.metrics import ServerMetrics
from trtspec.serve.settings import ServeSettings


class Status(Enum):
    """The server's phase. Requests are accepted in READY, in FAILING (an engine step may
    succeed again) and in LEAVING (until load balancers know)."""

    STARTING = "starting"
    READY = "ready"
    FAILING = "failing"
    LEAVING = "leaving"
    DRAINING = "draining"
    FAILED = "failed"


class Service:
    """Created before the event loop runs; everything but `detail` belongs to the loop's thread."""

    def __init__(self, settings: ServeSettings) -> None:
        self.settings = settings
        self.metrics = ServerMetrics(settings.metrics_prefix, settings.model_names[0])
        self.status = Status.STARTING
        self.detail = "loading the engine"
        self.front_end: FrontEnd | None = None
        self.gate = Gate(1, settings.max_queue)
        self._interrupt: asyncio.Future[ApiError] | None = None

    @property
    def interrupt(self) -> asyncio.Future[ApiError]:
        """Completed when every running request must end immediately, with this error."""
        if self._interrupt is None:
            self._interrupt = asyncio.get_running_loop().create_future()
        return self._interrupt

    def interrupt_all(self, error: ApiError) -> None:
        if not self.interrupt.done():
            self.interrupt.set_result(error)

    def open(self, engine: EngineClient) -> None:
        """The engine is loaded: serve from now on."""
        self.front_end = FrontEnd(engine, self.settings)
        self.gate = Gate(engine.facts.limits.max_batch_size, self.settings.max_queue)
        if self.status is Status.STARTING:
            self.status, self.detail = Status.READY, ""

    def report_failing(self, reason: str | None) -> None:
        """No request can be served for now, or (None) one can again; has no effect unless requests
        are being accepted."""
        if reason is not None and self.status in (Status.READY, Status.FAILING):
            if self.status is Status.READY:
                logger.error("not ready: %s", reason)
            self.status, self.detail = Status.FAILING, reason
        elif reason is None and self.status is Status.FAILING:
            logger.info("ready again")
            self.status, self.detail = Status.READY, ""

    def ready(self) -> FrontEnd:
        """The engine, with what is known of its texts.

        Raises:
            ApiError: 503 with the reason if the server does not accept requests.
        """
        serving = (Status.READY, Status.FAILING, Status.LEAVING)
        if self.status in serving and self.front_end is not None:
            return self.front_end
        code = f"server_{self.status.value}"
        raise ApiError(503, self.describe(), code, retry_after=RETRY_SECONDS)

    def describe(self) -> str:
        """The status in words."""
        detail = f": {self.detail}" if self.detail else ""
        return f"the server is {self.status.value}{detail}"

    def model(self, asked: str | None) -> tuple[str, str | None]:
        """The name to report for the requested model, and the adapter of that name, if it is one;
        ApiError (404) if it is unknown."""
        names = self.settings.model_names
        if asked is None or asked in names:
            return asked or names[0], None
        adapters = self.ready().engine.adapters
        if asked not in adapters:
            known = ", ".join([*names, *adapters])
            raise ApiError(
                404,
                f"the model {asked[:128]!r} does not exist; this server has {known}",
                "model_not_found",
                "model",
            )
        return asked, asked

    async def exposition(self) -> bytes:
        """The metrics of the server, and of its engine once it is open."""
        if self.front_end is None:
            return self.metrics.exposition()
        engine = self.front_end.engine
        return self.metrics.exposition(
            await engine.load(), await engine.figures(), await engine.replicas()
        )


def service_of(request: Request) -> Service:
    """That of the server which a request came to."""
    service = request.app.state.service
    assert isinstance(service, Service)
    return service
