"""Replica: an engine in a process of its own, and what a `ReplicaGroup` asks of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from trtspec.errors import EngineError, TrtspecError
from trtspec.llmapi.outputs import RequestOutput
from trtspec.serve.engine_client import EngineClient, EngineFacts, GenerateRequest
from trtspec.serve.replicas.report import Report

Told = tuple[float, list[RequestOutput]] | TrtspecError
"""A message of a stream: outputs, and when they were sent (by the replica's clock); or why the
request failed, as data, so that errors of requests are none of the replica's."""


@dataclass(frozen=True)
class ReplicaFacts:
    """What the server must know of the engines of all replicas. adapters: those that each loads as
    it starts."""

    engine: EngineFacts
    tokenizer: Any
    adapters: Mapping[str, str]


class Replica:
    """Its methods are called one at a time, in one event loop."""

    def __init__(
        self,
        name: str,
        open_engine: Callable[[], EngineClient],
        step_timeout: float,
        max_failed_steps: int,
    ) -> None:
        """``step_timeout``: seconds after which a step hangs; ``max_failed_steps``: in a row. Then
        the replica asks to be replaced."""
        self._name = name
        self._engine = open_engine()
        self._loading = asyncio.Lock()
        self._step_timeout, self._max_failed_steps = step_timeout, max_failed_steps

    async def facts(self) -> ReplicaFacts:
        engine = self._engine
        return ReplicaFacts(engine.facts, engine.intake.prompts.tokenizer, dict(engine.adapters))

    async def generate(
        self, request: GenerateRequest, folder: str | None
    ) -> AsyncGenerator[Told, None]:
        """`EngineClient.generate`. ``folder``: of the request's adapter, which is loaded first if a
        replica that was started later does not have it."""
        try:
            if request.adapter is not None and folder is not None:
                await self.load_adapter(request.adapter, folder)
            async with aclosing(self._engine.generate(request)) as gains:
                async for outputs in gains:
                    yield time.monotonic(), outputs
        except TrtspecError as error:
            yield error

    async def report(self) -> Report:
        return Report(self._name, await self._engine.load(), await self._engine.figures())

    async def check_health(self) -> None:
        """EngineError: this replica must be replaced."""
        await self._engine.check_health()
        load = await self._engine.load()
        if load.step_seconds > self._step_timeout:
            raise EngineError(f"an engine step has taken more than {self._step_timeout:g} s")
        failed, limit = load.num_failed_steps_in_a_row, self._max_failed_steps
        if failed >= limit:
            raise EngineError(f"{failed} engine steps in a row failed: {load.last_failure}")

    async def load_adapter(self, name: str, folder: str) -> None:
        """Load an adapter, unless this one is loaded."""
        async with self._loading:
            loaded = self._engine.adapters.get(name)
            if loaded == folder:
                return
            if loaded is not None:
                await self._engine.unload_adapter(name)
            await self._engine.load_adapter(name, folder)

    async def unload_adapter(self, name: str) -> None:
        """Forget an adapter, if it is loaded."""
        async with self._loading:
            if name in self._engine.adapters:
                await self._engine.unload_adapter(name)
