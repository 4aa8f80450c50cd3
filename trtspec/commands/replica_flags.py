"""Flags for replicas of an engine, and what they ask for."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from trtspec.commands.json_flag import read_json
from trtspec.errors import ConfigError

RAY = "ray"
_ONLY_OVER_RAY = ("routing_policy", "autoscaling_config", "ray_address", "ray_deployment_config")


def add_replica_flags(add: Callable[..., Any]) -> None:
    """To a parser's group."""
    add("--data-parallel-size", "--dp-size", type=int, help="replicas of the engine, over Ray (1)")
    add(
        "--distributed-executor-backend",
        "--data-parallel-backend",
        help="ray: replicas over Ray Serve; mp: one engine here, whatever its ranks (mp)",
    )
    add(
        "--routing-policy",
        help="prefix_aware: to where most of a prompt is cached and least is to do; random",
    )
    add("--autoscaling-config", help='Ray\'s, as JSON: {"min_replicas": 1, "max_replicas": 4, ...}')
    add("--ray-address", help="of a running cluster, or auto ($RAY_ADDRESS, else a local one)")
    add(
        "--ray-deployment-config",
        help="further options of Ray Serve's deployments, as JSON: "
        '{"ray_actor_options": {"num_cpus": 4}}',
    )


def replica_options(args: argparse.Namespace) -> dict[str, Any] | None:
    """Options of `ReplicaSettings`; None: one engine in this process.

    Raises:
        ConfigError: flags exclude each other, or are not JSON.
    """
    if args.distributed_executor_backend != RAY:
        given = [name for name in _ONLY_OVER_RAY if getattr(args, name) is not None]
        if args.data_parallel_size not in (None, 1):
            given.insert(0, "data_parallel_size")
        if given:
            flag = given[0].replace("_", "-")
            raise ConfigError(
                f"--{flag} {getattr(args, given[0])} is for replicas of an engine, which run over "
                f"Ray: add --distributed-executor-backend {RAY}"
            )
        return None
    found = {
        "num_replicas": args.data_parallel_size,
        "routing_policy": args.routing_policy,
        "address": args.ray_address,
        "autoscaling": _json(args.autoscaling_config, "--autoscaling-config"),
        "deployment": _json(args.ray_deployment_config, "--ray-deployment-config"),
    }
    return {name: value for name, value in found.items() if value is not None}


def _json(text: str | None, flag: str) -> Mapping[str, Any] | None:
    return None if text is None else read_json(text, flag)
