"""RayRouter, called in the orders in which Ray calls it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from trtspec.config.sampling import SamplingParams
from trtspec.serve.engine_client import GenerateRequest

pytest.importorskip("ray")
from trtspec.serve.replicas.balancer import PREFIX_AWARE
from trtspec.serve.replicas.call import Call
from trtspec.serve.replicas.ray_router import RayRouter


@pytest.fixture
def router() -> RayRouter:
    """Without a handle, over two replicas."""
    router = object.__new__(RayRouter)
    router.initialize_state(PREFIX_AWARE)
    router._balancer.update(["a", "b"])
    return router


def call() -> Any:
    request = GenerateRequest(({"prompt_token_ids": [1, 2, 3]},), SamplingParams())
    return SimpleNamespace(
        args=[Call(request)],
        metadata=SimpleNamespace(internal_request_id="r"),
        routing_context=SimpleNamespace(),
    )


A: Any = "a"


@pytest.mark.parametrize("completed_first", [False, True])
def test_a_request_that_has_ended_is_not_counted(router: RayRouter, completed_first: bool) -> None:
    """Ray may say that a request was routed after it has said that it is completed."""
    routed = call()
    asyncio.run(router.choose_replicas([], routed))
    assert router._balancer.rank([]) == ["b", "a"]
    if completed_first:
        router.on_request_completed(A, "r")
    router.on_request_routed(routed, A, None)
    if not completed_first:
        assert router._balancer.rank([]) == ["b", "a"]
        router.on_request_completed(A, "r")
    assert router._balancer.rank([]) == ["a", "b"]


def test_a_request_that_was_cancelled_is_not_counted(router: RayRouter) -> None:
    """Ray does not always say that it is completed."""
    cancelled = call()
    asyncio.run(router.choose_replicas([], cancelled))
    router.on_request_routed(cancelled, A, None)
    cancelled.args[0].is_over = True
    asyncio.run(router.choose_replicas([]))
    assert router._balancer.rank([]) == ["a", "b"]
