"""ReplicaSettings: how many replicas there are, where they run, and who gets a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trtspec.config.strict import strict_config
from trtspec.errors import ConfigError
from trtspec.serve.replicas.balancer import POLICIES, PREFIX_AWARE

# What is decided here, or by another option.
_TAKEN = (
    *("name", "num_replicas", "autoscaling_config", "request_router_config"),
    *("max_ongoing_requests", "logging_config"),
)


@strict_config()
@dataclass(frozen=True)
class ReplicaSettings:
    """Checked options; ConfigError names a bad value.

    num_replicas: of the engine, unless ``autoscaling`` says between how many. routing_policy: one
    of `POLICIES`. address: of a running Ray cluster, or "auto" for that of this machine; None: a
    local one, which ends with the server. autoscaling: the fields of Ray Serve's
    ``AutoscalingConfig``. deployment: further options of Ray Serve's ``deployment``, such as
    ``{"ray_actor_options": {"num_cpus": 4}}``.
    """

    num_replicas: int = 1
    routing_policy: str = PREFIX_AWARE
    address: str | None = None
    autoscaling: Mapping[str, Any] | None = None
    deployment: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.num_replicas < 1:
            raise ConfigError(f"data_parallel_size={self.num_replicas} must be at least 1")
        if self.routing_policy not in POLICIES:
            raise ConfigError(
                f"routing_policy={self.routing_policy!r} is unknown; there are "
                f"{', '.join(POLICIES)}"
            )
        if self.autoscaling is not None and self.num_replicas != 1:
            raise ConfigError(
                f"data_parallel_size={self.num_replicas} and autoscaling_config exclude each "
                "other; write min_replicas and max_replicas there"
            )
        if type(self.max_replicas) is not int or self.max_replicas < 1:
            raise ConfigError(
                f"autoscaling_config: max_replicas={self.max_replicas!r} must be an integer of at "
                "least 1"
            )
        options = self.deployment.get("ray_actor_options", {})
        if not isinstance(options, Mapping):
            raise ConfigError(
                f"ray_deployment_config: ray_actor_options={options!r} is no JSON object, such as "
                '{"num_cpus": 4}'
            )
        for name in _TAKEN:
            if name in self.deployment:
                raise ConfigError(
                    f"ray_deployment_config: {name} is not an option of it; there are "
                    "--data-parallel-size, --autoscaling-config and --routing-policy"
                )

    @property
    def max_replicas(self) -> int:
        """As many as there may be at once."""
        found: int = (self.autoscaling or {}).get("max_replicas", self.num_replicas)
        return found

    @property
    def may_be_none(self) -> bool:
        """Whether there may be none while there is nothing to do."""
        return self.autoscaling is not None and self.autoscaling.get("min_replicas") == 0
