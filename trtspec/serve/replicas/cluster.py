"""Ray: starts or joins a cluster, deploys replicas with Ray Serve, and reaches them.

Ray is imported when replicas are asked for, and not before.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager, suppress
from typing import Any

from trtspec.errors import EngineError, TrtspecError
from trtspec.llmapi.outputs import RequestOutput
from trtspec.log import logger
from trtspec.optional import import_optional
from trtspec.serve.engine_client import EngineClient, EngineLostError, GenerateRequest
from trtspec.serve.replicas.call import Call
from trtspec.serve.replicas.group import ReplicaGroup
from trtspec.serve.replicas.replica import Replica, ReplicaFacts, Told
from trtspec.serve.replicas.report import Report
from trtspec.serve.replicas.settings import ReplicaSettings
from trtspec.serve.settings import ServeSettings

_ROUTER = "trtspec.serve.replicas.ray_router.RayRouter"
_LOCAL = "local"
_STORE_BYTES = 2**27
"""Of a local cluster's object store, which holds no message here: they are small enough to be sent
with the calls. Ray's own choice would be a third of the memory."""
_MAX_ONGOING = 2**16
"""Calls that a replica takes, which is all: the server's gate bounds them, and engines queue."""
_SIGACTION_BYTES = 512  # more than a `struct sigaction` has anywhere


def replica_opener(
    settings: ReplicaSettings,
    server: ServeSettings,
    open_engine: Callable[[], EngineClient],
    num_gpus: int,
) -> Callable[[], EngineClient]:
    """What a server opens its engine with: starts replicas and waits until they serve.

    ``open_engine`` is sent to each of them. num_gpus: of each, where there are any. What it returns
    raises EngineError: there is no such cluster, or a replica does not start.

    Raises:
        ConfigError: Ray is not installed.
    """
    _import_ray()

    def open_group() -> EngineClient:
        # Of a cluster that goes on when a server is killed, the next one replaces its replicas.
        name = f"trtspec-{socket.gethostname()}-{server.port or os.getpid()}"
        calls = RayCalls(settings.address or os.environ.get("RAY_ADDRESS") or _LOCAL, name)
        try:
            arguments = (open_engine, server.step_timeout, server.max_failed_steps)
            calls.deploy(settings, num_gpus, arguments)
            return ReplicaGroup(calls, calls.facts(), settings.max_replicas, settings.may_be_none)
        except BaseException:
            calls.close()
            raise

    return open_group


class RayReplica(Replica):
    """A replica in an actor of Ray Serve, which calls `check_health` now and then, and replaces the
    actor where that fails."""

    def __init__(
        self, open_engine: Callable[[], EngineClient], step_timeout: float, max_failed_steps: int
    ) -> None:
        name = _import_ray().serve.get_replica_context().replica_id.unique_id
        super().__init__(name, open_engine, step_timeout, max_failed_steps)

    async def serve_call(self, call: Call, folder: str | None) -> AsyncIterator[Told]:
        """`generate` of the call's request."""
        async with aclosing(self.generate(call.request, folder)) as messages:
            async for told in messages:
                yield told


class RayCalls:
    """`Calls` to a deployment of Ray Serve."""

    def __init__(self, address: str, name: str) -> None:
        self._name = name
        self._is_local = address == _LOCAL
        # A local cluster's processes end with the thread that started them.
        self._thread = ThreadPoolExecutor(1, "trtspec-ray")
        self._ray = ray = _import_ray()
        self._gone = (ray.exceptions.RayError, ray.serve.exceptions.RayServeException)
        # Lines of this process have one form, and Ray's say what is usual here up to warnings.
        for log_name, level in (("ray", logging.ERROR), ("ray.serve", logging.WARNING)):
            log = logging.getLogger(log_name)
            log.handlers, log.propagate = list(logger.handlers), False
            log.setLevel(level)
        own: dict[str, Any] = {}
        if self._is_local:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            own = {"include_dashboard": False, "object_store_memory": _STORE_BYTES}
        try:
            with _own_signals():
                self._thread.submit(
                    ray.init, address, log_to_driver=False, configure_logging=False, **own
                ).result()
            ray.serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING"})
        except (OSError, RuntimeError, ValueError, *self._gone) as error:
            raise EngineError(
                f"the Ray cluster {address!r} cannot be used: {error}; start one (ray start "
                "--head), or leave --ray-address and RAY_ADDRESS out for one of this machine alone"
            ) from error

    def deploy(self, settings: ReplicaSettings, num_gpus: int, arguments: tuple[Any, ...]) -> None:
        """Start `RayReplica` with these arguments, as often as asked; blocks until they serve.

        Raises:
            EngineError: one does not start, or Ray refuses an option.
        """
        serve = self._ray.serve
        options = {"max_constructor_retry_count": 1, **settings.deployment}
        if "placement_group_bundles" not in options:
            asked = options.get("ray_actor_options", {})
            options["ray_actor_options"] = {**self._share(settings, num_gpus), **asked}
        if settings.autoscaling is None:
            options["num_replicas"] = settings.num_replicas
        else:
            options["autoscaling_config"] = dict(settings.autoscaling)
        logger.info("starting replicas over Ray: %s", options)
        try:
            deployment = serve.deployment(
                RayReplica,
                name="replica",
                max_ongoing_requests=_MAX_ONGOING,
                logging_config={"log_level": "WARNING", "enable_access_log": False},
                request_router_config={
                    "request_router_class": _ROUTER,
                    "request_router_kwargs": {"policy": settings.routing_policy},
                },
                **options,
            )
            self._handle = serve.run(
                deployment.bind(*arguments), name=self._name, route_prefix=None
            )
        except (TypeError, ValueError, RuntimeError, *self._gone) as error:
            reason = self._last_words() or error
            raise EngineError(f"replicas cannot be started: {reason}") from error
        self._generate = self._handle.options(method_name="serve_call", stream=True)

    def facts(self) -> ReplicaFacts:
        """Of one of them; blocks."""
        facts: ReplicaFacts = self._handle.facts.remote().result()
        return facts

    async def generate(
        self, request: GenerateRequest, folder: str | None
    ) -> AsyncGenerator[tuple[float, list[RequestOutput]], None]:
        call = Call(request)
        stream = self._generate.remote(call, folder)
        has_ended = False
        try:
            async for told in stream:
                if isinstance(told, TrtspecError):
                    raise told
                yield told
            has_ended = True
        except self._ray.exceptions.RayTaskError as error:
            logger.error("a replica failed: %s", error)  # with its traceback
            raise EngineError(f"a replica failed: {type(error.cause).__name__}") from error
        except self._gone as error:
            raise EngineLostError(
                "the replica that served the request ended before it was done; send it again"
            ) from error
        finally:
            call.is_over = True
            if not has_ended:
                stream.cancel()

    async def reports(self) -> Sequence[Report]:
        return [answer for answer in await self._answers("report") if isinstance(answer, Report)]

    async def load_adapter(self, name: str, folder: str) -> None:
        if not await self._all("load_adapter", name, folder):
            raise EngineLostError("no replica is up to load the adapter; try again when one is")

    async def unload_adapter(self, name: str) -> None:
        await self._all("unload_adapter", name)

    def close(self) -> None:
        if not self._is_local:  # whose processes all end below
            with suppress(*self._gone):
                self._ray.serve.delete(self._name)
        self._ray.shutdown()
        self._thread.shutdown()

    async def _all(self, method: str, *arguments: Any) -> int:
        """How many have done it; the error of one that refuses. Those that are gone don't matter:
        what is started in their place loads adapters as requests ask for them."""
        answers = await self._answers(method, *arguments)
        for answer in answers:
            if isinstance(answer, self._ray.exceptions.RayTaskError):
                raise answer.cause if isinstance(answer.cause, TrtspecError) else answer
        return sum(not isinstance(answer, BaseException) for answer in answers)

    async def _answers(self, method: str, *arguments: Any) -> Sequence[Any]:
        """What all replicas return or raise."""
        try:
            told = self._handle.broadcast(method, *arguments)
            answers: Sequence[Any] = await told.results_async(return_exceptions=True)
        except self._gone:  # there is none
            return ()
        return answers

    def _last_words(self) -> str:
        """The error of a replica that did not start: the end of the traceback that Ray shows."""
        lines: list[str] = []
        with suppress(*self._gone, KeyError):  # none was deployed
            application = self._ray.serve.status().applications[self._name]
            for each in application.deployments.values():
                lines += each.message.splitlines()
        return lines[-1] if lines else ""

    def _share(self, settings: ReplicaSettings, num_gpus: int) -> dict[str, Any]:
        """What a replica gets unless its options say otherwise: its part of the cluster's cores,
        but no more than a machine has, as all ranks of an engine are processes of one; and its
        GPUs, if there are any. Ray sets OMP_NUM_THREADS to the cores."""
        machines = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        cores = [int(each.get("CPU", 0)) for each in machines]
        share = {"num_cpus": max(1, min(max(cores), sum(cores) // settings.max_replicas))}
        if any(each.get("GPU") for each in machines):
            share["num_gpus"] = num_gpus
        return share


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep SIGTERM as it is. Ray takes it over, below Python and from any thread, and ends the
    process three seconds later, before a server has drained."""
    libc, kept = ctypes.CDLL(None), ctypes.create_string_buffer(_SIGACTION_BYTES)
    libc.sigaction(signal.SIGTERM, None, kept)
    try:
        yield
    finally:
        libc.sigaction(signal.SIGTERM, kept, None)


def _import_ray() -> Any:
    needed_for, install = "--distributed-executor-backend ray", "'trtspec[ray]'"
    import_optional("ray.serve", needed_for, install)
    return import_optional("ray", needed_for, install)
