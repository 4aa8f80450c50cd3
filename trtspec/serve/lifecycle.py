"""Lifecycle: loads the engine, watches it, drains and stops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from trtspec.errors import TrtspecError
from trtspec.log import logger
from trtspec.serve.engine_client import EngineClient, EngineLostError
from trtspec.serve.errors import ApiError
from trtspec.serve.service import Service, Status
from trtspec.serve.stats import Heartbeat

_WATCH_SECONDS = 0.25
_FAREWELL_SECONDS = 5.0


class Lifecycle:
    """Drives a `Service` from start to end; everything runs in the event loop's thread.

    exit_code: of the process: 0, or 1 after an engine failure. hung: the engine's thread no longer
    responds, so nobody may wait for it. loading: the loading thread is at work, and nothing can
    stop it. on_stop: called once when the server should stop listening.
    """

    def __init__(self, service: Service, open_engine: Callable[[], EngineClient]) -> None:
        self.service = service
        self.exit_code = 0
        self.hung = False
        self.loading = False
        self.on_stop: Callable[[], None] = lambda: None
        self._open_engine = open_engine
        self._tasks: list[asyncio.Task[None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Load in the background and watch; at the end abort what is left and close the engine."""
        self._loop = asyncio.get_running_loop()
        self._begin(self._load())
        try:
            yield
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self.service.interrupt_all(ApiError(503, "the server is stopping", "server_stopped"))
            if self.service.front_end is not None and not self.hung:
                await asyncio.to_thread(self.service.front_end.engine.close)

    def drain(self, announced: bool = False) -> None:
        """Accept no new requests, let running ones finish, then stop. If ``announced``, /health
        reports it for a while first. A second call ends the current phase. May be called from a
        signal handler or any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._drain, announced)

    def _begin(self, work: object) -> None:
        assert asyncio.iscoroutine(work)
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    async def _load(self) -> None:
        """Open the engine in a daemon thread: a build cannot be stopped, and an exit must not wait
        for one."""
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[EngineClient] = loop.create_future()

        def settle(engine: EngineClient | None, error: BaseException | None) -> None:
            if opened.done():
                if engine is not None:
                    engine.close()
            elif engine is not None:
                opened.set_result(engine)
            else:
                opened.set_exception(error or RuntimeError("nothing was opened"))

        def run() -> None:
            engine, failure = None, None
            try:
                engine = self._open_engine()
            except BaseException as error:
                failure = error
            self.loading = False
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(settle, engine, failure)

        began = time.monotonic()
        steps = _LastLine(self.service, threading.get_ident())
        logger.addHandler(steps)
        self.loading = True
        threading.Thread(target=run, name="trtspec-load", daemon=True).start()
        try:
            engine = await opened
        except TrtspecError as error:
            self._fail(str(error))
            return
        except Exception as error:
            logger.exception("the engine could not be loaded")
            self._fail(f"the engine could not be loaded: {error}")
            return
        finally:
            logger.removeHandler(steps)
        try:
            self.service.open(engine)
        except Exception as error:
            engine.close()
            logger.exception("the server could not be set up")
            self._fail(f"the server could not be set up: {error}")
            return
        facts = engine.facts
        logger.info(
            "ready after %.1f s: %s, batch %d, %d tokens, speculation %s",
            time.monotonic() - began,
            ", ".join(self.service.settings.model_names),
            facts.limits.max_batch_size,
            facts.limits.max_seq_len,
            "+".join(facts.draft_sources) or "off",
        )
        self._begin(self._watch(engine))
        if self.service.settings.log_interval:
            self._begin(self._report(engine))

    async def _watch(self, engine: EngineClient) -> None:
        """Fail when the engine is lost, hangs in a step, or fails in every step."""
        settings = self.service.settings
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            try:
                await engine.check_health()
            except EngineLostError as error:
                self.service.report_failing(str(error))
                continue
            except TrtspecError as error:
                self._fail(str(error))
                return
            load = await engine.load()
            if load.step_seconds > settings.step_timeout:
                self.hung = True
                self._fail(
                    f"an engine step has taken more than {settings.step_timeout:g} s "
                    "(--step-timeout)"
                )
                return
            failing = load.num_failed_steps_in_a_row >= settings.max_failed_steps
            reason = (
                f"{load.num_failed_steps_in_a_row} engine steps in a row failed "
                f"(--max-failed-steps {settings.max_failed_steps}), the last one with: "
                f"{load.last_failure}"
            )
            if failing and not settings.stay_after_failures:
                self._fail(reason)
                return
            self.service.report_failing(reason if failing else None)

    async def _report(self, engine: EngineClient) -> None:
        heartbeat = Heartbeat(await engine.load(), await engine.figures())
        while True:
            await asyncio.sleep(self.service.settings.log_interval)
            heartbeat.beat(await engine.load(), await engine.figures())

    def _drain(self, announced: bool) -> None:
        service, seconds = self.service, self.service.settings.drain_seconds
        if service.status is Status.DRAINING:
            service.interrupt_all(ApiError(503, "the server was stopped", "server_stopped"))
        elif announced and seconds and service.status in (Status.READY, Status.FAILING):
            logger.info("stopping: new requests are taken for %g s yet (--drain-seconds)", seconds)
            service.status, service.detail = Status.LEAVING, "send new requests elsewhere"
            self._begin(self._leave(seconds))
        elif service.status is not Status.FAILED:
            logger.info("stopping: %d requests are under way", service.gate.num_requests)
            service.status, service.detail = Status.DRAINING, "no new requests are taken"
            self._begin(self._finish_requests(service.settings.drain_timeout))

    async def _leave(self, seconds: float) -> None:
        """Begin to drain, unless something else has ended the server meanwhile."""
        await asyncio.sleep(seconds)
        if self.service.status is Status.LEAVING:
            self._drain(announced=False)

    async def _finish_requests(self, limit: float) -> None:
        """Wait for running requests, then end the others, then stop."""
        service = self.service
        if not await self._none_left(limit):
            left = service.gate.num_requests
            if not service.interrupt.done():
                logger.warning("%d requests were not done after %g s, they are ended", left, limit)
            service.interrupt_all(
                ApiError(503, "the server stopped before the request was done", "server_stopped")
            )
            await self._none_left(_FAREWELL_SECONDS, even_if_interrupted=True)
        self._stop()

    async def _none_left(self, limit: float, even_if_interrupted: bool = False) -> bool:
        end = time.monotonic() + limit
        while self.service.gate.num_requests:
            interrupted = self.service.interrupt.done() and not even_if_interrupted
            if interrupted or time.monotonic() >= end:
                return False
            await asyncio.sleep(0.02)
        return True

    def _fail(self, reason: str) -> None:
        """The engine is lost: fail every request, then stop with exit code 1."""
        service = self.service
        logger.error("%s", reason)
        service.status, service.detail = Status.FAILED, reason
        self.exit_code = 1
        service.interrupt_all(ApiError(500, reason, "engine_error"))
        self._begin(self._finish_requests(0.0))

    def _stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            self.on_stop()


class _LastLine(logging.Handler):
    """Shows the latest log line of a build as the service's detail. Lines of the event loop's
    thread are about requests and are ignored."""

    def __init__(self, service: Service, loop_thread: int) -> None:
        super().__init__(logging.INFO)
        self._service, self._loop_thread = service, loop_thread

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self._loop_thread:
            return
        lines = record.getMessage().splitlines()
        if self._service.status is Status.STARTING and lines:
            self._service.detail = lines[0]
