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
from trtspec.serve.replicas.ray_router import RayRouter

REQUEST = GenerateRequest(({"prompt_token_ids": [1, 2, 3]},), SamplingParams())


@pytest.mark.parametrize("completed_first", [False, True])
def test_a_request_that_has_ended_is_not_counted(completed_first: bool) -> None:
    """Ray may say that a request was routed after it has said that it is completed."""

    async def route() -> None:
        call: Any = SimpleNamespace(
            args=[REQUEST],
            metadata=SimpleNamespace(internal_request_id="r"),
            routing_context=SimpleNamespace(),
            future=asyncio.get_running_loop().create_future(),
        )
        a: Any = "a"
        await router.choose_replicas([], call)
        assert router._balancer.rank([]) == ["b", "a"]
        if completed_first:
            router.on_request_completed(a, "r")
        router.on_request_routed(call, a, None)
        if not completed_first:
            assert router._balancer.rank([]) == ["b", "a"]
            router.on_request_completed(a, "r")
        assert router._balancer.rank([]) == ["a", "b"]

    router = object.__new__(RayRouter)  # without a handle
    router.initialize_state(PREFIX_AWARE)
    router._balancer.update(["a", "b"])
    asyncio.run(route())
