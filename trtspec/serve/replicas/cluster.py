"""Ray: starts or joins a cluster, deploys replicas with Ray Serve, and reaches them.

Only this file and its neighbours that Ray runs (`ray_replica.py`, `ray_router.py`) import Ray, and
nothing imports them unless replicas are asked for.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError, RayTaskError
from ray.serve.config import RequestRouterConfig
from ray.serve.exceptions import RayServeException

from trtspec.errors import EngineError, TrtspecError
from trtspec.llmapi.outputs import RequestOutput
from trtspec.log import logger
from trtspec.serve.engine_client import EngineClient, EngineLostError, GenerateRequest
from trtspec.serve.replicas.group import ReplicaGroup
from trtspec.serve.replicas.ray_replica import RayReplica
from trtspec.serve.replicas.ray_router import RayRouter
from trtspec.serve.replicas.replica import ReplicaFacts
from trtspec.serve.replicas.report import Report
from trtspec.serve.replicas.settings import ReplicaSettings

_LOCAL = "local"
_STORE_BYTES = 2**27
"""Of a local cluster's object store, which holds no message here: they are small enough to be sent
with the calls. Ray's own choice would be a third of the memory."""
_MAX_ONGOING = 2**16
"""Calls that a replica takes, which is all: the server's gate bounds them, and engines queue."""


def open_replicas(
    settings: ReplicaSettings,
    open_engine: Callable[[], EngineClient],
    *,
    name: str,
    num_gpus: int,
    step_timeout: float,
    max_failed_steps: int | None,
    adapters: Mapping[str, str],
) -> ReplicaGroup:
    """Start replicas and wait until they serve.

    ``open_engine`` is sent to each; ``adapters``: those that it loads. name: of the application; an
    earlier one of this name in the cluster is replaced. num_gpus: of each, where there are any. The
    others: see `Replica`.

    Raises:
        EngineError: there is no such cluster, or a replica does not start.
    """
    calls = RayCalls(settings.address or os.environ.get("RAY_ADDRESS") or _LOCAL, name)
    try:
        calls.deploy(settings, num_gpus, (open_engine, step_timeout, max_failed_steps))
        return ReplicaGroup(
            calls, calls.facts(), settings.max_replicas, settings.may_be_none, adapters
        )
    except BaseException:
        calls.close()
        raise


class RayCalls:
    """`Calls` to a deployment of Ray Serve."""

    def __init__(self, address: str, name: str) -> None:
        self._is_local = address == _LOCAL
        self._name = name
        own: dict[str, Any] = {}
        if self._is_local:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            own = {"include_dashboard": False, "object_store_memory": _STORE_BYTES}
        try:
            ray.init(address, log_to_driver=False, logging_level="warning", **own)
            serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING"})
        except (OSError, RuntimeError, ValueError, RayError) as error:
            raise EngineError(
                f"the Ray cluster {address!r} cannot be used: {error}; start one (ray start "
                "--head), or leave --ray-address and RAY_ADDRESS out for one of this machine alone"
            ) from error

    def deploy(self, settings: ReplicaSettings, num_gpus: int, engine: tuple[Any, ...]) -> None:
        """Start replicas with these arguments; EngineError: one does not start."""
        options = {"max_constructor_retry_count": 1, **settings.deployment}
        if "placement_group_bundles" not in options:
            asked = options.get("ray_actor_options", {})
            usual = _share(settings.max_replicas, num_gpus)
            options["ray_actor_options"] = {**usual, **asked}
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
                request_router_config=RequestRouterConfig(
                    request_router_class=f"{RayRouter.__module__}.{RayRouter.__name__}",
                    request_router_kwargs={"policy": settings.routing_policy},
                ),
                **options,
            )
            handle = serve.run(deployment.bind(*engine), name=self._name, route_prefix=None)
        except (TypeError, ValueError, RuntimeError, RayError, RayServeException) as error:
            raise EngineError(f"replicas cannot be started: {error}") from error
        self._handle = handle
        self._generate = handle.options(method_name="generate", stream=True)

    def facts(self) -> ReplicaFacts:
        """Of one of them; blocks."""
        facts: ReplicaFacts = self._handle.facts.remote().result()
        return facts

    async def generate(
        self, request: GenerateRequest, folder: str | None
    ) -> AsyncGenerator[tuple[float, list[RequestOutput]], None]:
        stream = self._generate.remote(request, folder)
        has_ended = False
        try:
            async for told in stream:
                if isinstance(told, TrtspecError):
                    raise told
                yield told
            has_ended = True
        except RayTaskError as error:
            raise EngineError(f"a replica failed: {error.cause!r}") from error
        except (RayError, RayServeException) as error:
            raise EngineLostError(
                "the replica that served the request ended before it was done; send it again"
            ) from error
        finally:
            if not has_ended:
                stream.cancel()

    async def reports(self) -> Sequence[Report]:
        try:
            answers = self._handle.broadcast("report").results_async(return_exceptions=True)
            return [answer for answer in await answers if isinstance(answer, Report)]
        except RayServeException:  # there is none
            return []

    async def load_adapter(self, name: str, folder: str) -> None:
        await self._all("load_adapter", name, folder)

    async def unload_adapter(self, name: str) -> None:
        await self._all("unload_adapter", name)

    def close(self) -> None:
        with suppress(RayError, RayServeException):
            serve.shutdown() if self._is_local else serve.delete(self._name)
        ray.shutdown()

    async def _all(self, method: str, *arguments: Any) -> None:
        try:
            await self._handle.broadcast(method, *arguments).results_async()
        except RayTaskError as error:
            raise error.cause if isinstance(error.cause, TrtspecError) else error from None
        except (RayError, RayServeException) as error:
            raise EngineLostError(f"not all replicas could be asked: {error}") from error


def _share(replicas: int, num_gpus: int) -> dict[str, Any]:
    """What a replica gets by default: its part of the cluster's cores, as many as one machine has
    at most, since all ranks of an engine are processes of one; and a GPU a rank, if there are any.
    Ray sets OMP_NUM_THREADS to the cores."""
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cores = [int(each.get("CPU", 0)) for each in machines]
    share = {"num_cpus": max(1, min(max(cores), sum(cores) // replicas))}
    if any(each.get("GPU") for each in machines):
        share["num_gpus"] = num_gpus
    return share
