"""What the answers of replicas over Ray come to, with a Ray that answers as it is told."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from trtspec.config.sampling import SamplingParams
from trtspec.errors import CheckpointError, EngineError
from trtspec.serve.engine_client import EngineLostError, GenerateRequest
from trtspec.serve.replicas.cluster import RayCalls
from trtspec.serve.replicas.settings import ReplicaSettings

REQUEST = GenerateRequest(([1, 2, 3],), SamplingParams(max_tokens=4), stream=True)


class RayError(Exception):
    pass


class RayTaskError(RayError):
    """A method of a replica raised ``cause``."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(repr(cause))
        self.cause = cause


class Unavailable(Exception):
    pass


class Handle:
    """answers: of each replica, what it returns or raises; none: there is no replica."""

    answers: Sequence[object] = ()

    def options(self, **_: object) -> Any:
        return SimpleNamespace(remote=lambda *_: _Stream(self.answers))

    def broadcast(self, method: str, *_: object) -> Any:
        async def results_async(return_exceptions: bool) -> Sequence[object]:
            assert return_exceptions
            if not self.answers:
                raise Unavailable
            return self.answers

        return SimpleNamespace(results_async=results_async)


class _Stream:
    def __init__(self, answers: Sequence[object]) -> None:
        self._answers = answers

    async def __aiter__(self) -> AsyncIterator[object]:
        for answer in self._answers:
            if isinstance(answer, RayError):
                raise answer
            yield answer

    def cancel(self) -> None: ...


@pytest.fixture
def handle() -> Handle:
    return Handle()


@pytest.fixture
def calls(handle: Handle, monkeypatch: pytest.MonkeyPatch) -> Iterator[RayCalls]:
    serve = SimpleNamespace(
        exceptions=SimpleNamespace(RayServeException=Unavailable),
        start=lambda **_: None,
        deployment=lambda *_, **__: SimpleNamespace(bind=lambda *_: None),
        run=lambda *_, **__: handle,
    )
    ray = SimpleNamespace(
        exceptions=SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError),
        serve=serve,
        init=lambda *_, **__: None,
        nodes=lambda: [{"Alive": True, "Resources": {"CPU": 2.0}}],
        shutdown=lambda: None,
    )
    monkeypatch.setitem(sys.modules, "ray", ray)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "ray.serve", serve)  # type: ignore[arg-type]
    calls = RayCalls("local", "test")
    calls.deploy(ReplicaSettings(num_replicas=2), 0, ())
    yield calls
    calls.close()


def test_adapters_are_loaded_where_replicas_are_up(handle: Handle, calls: RayCalls) -> None:
    handle.answers = [RayError("the actor died"), None]
    asyncio.run(calls.load_adapter("low", "/adapters/low"))
    handle.answers = [None, RayTaskError(CheckpointError("no adapter_config.json"))]
    with pytest.raises(CheckpointError, match="no adapter_config"):
        asyncio.run(calls.load_adapter("low", "/adapters/low"))
    for nobody in ([], [RayError("the actor died")]):
        handle.answers = nobody
        with pytest.raises(EngineLostError, match="no replica is up to load"):
            asyncio.run(calls.load_adapter("low", "/adapters/low"))
        asyncio.run(calls.unload_adapter("low"))


def test_what_a_replica_raises_is_kept_from_clients(handle: Handle, calls: RayCalls) -> None:
    async def ask() -> None:
        async for _ in calls.generate(REQUEST, None):
            pass

    handle.answers = [RayTaskError(KeyError("/a/folder"))]
    with pytest.raises(EngineError, match=r"a replica failed: KeyError$"):
        asyncio.run(ask())
    handle.answers = [RayError("the actor died at 192.0.2.2")]
    with pytest.raises(EngineLostError, match=r"send it again$"):
        asyncio.run(ask())
