"""RayReplica: a `Replica` in an actor of Ray Serve."""

from __future__ import annotations

from collections.abc import Callable

from ray import serve

from trtspec.serve.engine_client import EngineClient
from trtspec.serve.replicas.replica import Replica


class RayReplica(Replica):
    """Ray Serve calls `check_health` now and then, and replaces a replica where it fails."""

    def __init__(
        self,
        open_engine: Callable[[], EngineClient],
        step_timeout: float,
        max_failed_steps: int | None,
    ) -> None:
        name = serve.get_replica_context().replica_id.unique_id
        super().__init__(name, open_engine, step_timeout, max_failed_steps)
