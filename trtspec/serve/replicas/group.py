"""ReplicaGroup: several replicas of one engine, which the server sees as one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Protocol

from trtspec.errors import TrtspecError
from trtspec.executor.executor_metrics import ExecutorFigures
from trtspec.llmapi.lora import check_folder
from trtspec.llmapi.outputs import EngineLoad, RequestOutput
from trtspec.llmapi.prompts import PromptReader
from trtspec.log import logger
from trtspec.serve.engine_client import (
    EngineFacts,
    EngineLostError,
    GenerateRequest,
    ReplicaFigures,
)
from trtspec.serve.intake import Intake
from trtspec.serve.replicas.replica import ReplicaFacts
from trtspec.serve.replicas.report import Report, Reports

_REPORT_SECONDS = 1.0
"""How old reports may be. Fresher ones cost each replica a call more often."""

_ATTEMPTS = 3
"""Replicas that one request may lose. A request that ends the process which serves it must not
end them all, one after the other; two that die by chance should not fail it."""


class Calls(Protocol):
    """How replicas are reached."""

    def generate(
        self, request: GenerateRequest, folder: str | None
    ) -> AsyncGenerator[tuple[float, list[RequestOutput]], None]:
        """`Replica.generate` of the one that suits the request best, waiting for one if there is
        none.

        Raises:
            EngineLostError: that one is gone.
            TrtspecError: as the replica says.
        """

    async def reports(self) -> Sequence[Report]:
        """Of all replicas that answer."""

    async def load_adapter(self, name: str, folder: str) -> None:
        """At all replicas; the error of any of them."""

    async def unload_adapter(self, name: str) -> None:
        """At all replicas."""

    def close(self) -> None:
        """End them; blocks."""


class ReplicaGroup:
    """An `EngineClient` over replicas.

    A request whose replica is lost before it gained anything is sent to another one: nobody has
    seen any of its text. Later it fails with EngineLostError: what was told cannot be taken back,
    and without a seed another replica would go on with another text.
    """

    def __init__(
        self,
        calls: Calls,
        facts: ReplicaFacts,
        max_replicas: int,
        may_be_none: bool = False,
    ) -> None:
        """``max_replicas``: how many there will be at most; ``may_be_none``: that there is none may
        be by intention, and the next request starts one."""
        self._reports = Reports()
        self._num_resent = 0
        self._num_lost = 0
        limits = facts.engine.limits
        whole = replace(limits, max_batch_size=limits.max_batch_size * max_replicas)
        self._facts = replace(facts.engine, limits=whole)
        self._intake = Intake(PromptReader(facts.tokenizer, facts.engine.vocab_size))
        self._calls = calls
        self._may_be_none = may_be_none
        self._adapters = dict(facts.adapters)
        self._asking: asyncio.Task[None] | None = None
        self._asked: float | None = None

    @property
    def facts(self) -> EngineFacts:
        return self._facts

    @property
    def intake(self) -> Intake:
        return self._intake

    @property
    def adapters(self) -> Mapping[str, str]:
        return self._adapters

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[list[RequestOutput], None]:
        """See `EngineClient.generate`. Whoever serves it, it keeps the ids that it was first
        accepted with."""
        asked = await self._intake.run(request.in_tokens, self._intake.prompts)
        folder = None if asked.adapter is None else self._adapters.get(asked.adapter)
        ids: list[int] = []
        await self.check_health()
        for attempt in range(1, _ATTEMPTS + 1):
            its_ids: dict[int, int] | None = None
            has_gained = False
            try:
                async with aclosing(self._told(asked, folder)) as told:
                    async for outputs in told:
                        if its_ids is None:
                            is_first = not ids
                            ids = ids or [output.request_id for output in outputs]
                            its_ids = {o.request_id: i for o, i in zip(outputs, ids, strict=True)}
                            if is_first:
                                yield outputs
                            continue
                        has_gained = True
                        for output in outputs:
                            output.request_id = its_ids[output.request_id]
                        yield outputs
                return
            except EngineLostError as error:
                if has_gained or attempt == _ATTEMPTS or self._is_down:
                    self._num_lost += 1
                    raise
                self._num_resent += 1
                logger.warning("a request is sent again: %s", error)

    async def _told(
        self, request: GenerateRequest, folder: str | None
    ) -> AsyncGenerator[list[RequestOutput], None]:
        """What one replica tells, by this process's clock. Gains that are not streamed come at the
        end, so that none was told if the replica is lost before."""
        shift: float | None = None
        held: list[RequestOutput] = []
        async with aclosing(self._calls.generate(request, folder)) as messages:
            try:
                async for sent, outputs in messages:
                    if shift is None:
                        shift = time.monotonic() - sent
                        yield outputs
                        continue
                    for output in outputs:
                        _shift_times(output, shift)
                    if request.stream:
                        yield outputs
                    else:
                        held += outputs
            except EngineLostError:
                raise
            except TrtspecError:
                if held:
                    yield held
                raise
        if held:
            yield held

    @property
    def _is_down(self) -> bool:
        return not self._reports.up and not self._may_be_none

    async def check_health(self) -> None:
        """EngineLostError while no replica is up."""
        await self._ask()
        if self._is_down:
            raise EngineLostError("no replica is up; Ray starts others where there is room")

    async def load(self) -> EngineLoad:
        await self._ask()
        # A replica that hangs or fails in every step is replaced, which is no failure of the group.
        return replace(self._reports.load, step_seconds=0.0, num_failed_steps_in_a_row=0)

    async def figures(self) -> ExecutorFigures:
        await self._ask()
        return self._reports.figures

    async def replicas(self) -> ReplicaFigures | None:
        await self._ask()
        loads = {name: report.load for name, report in self._reports.up.items()}
        return ReplicaFigures(loads, self._reports.num_started, self._num_resent, self._num_lost)

    async def load_adapter(self, name: str, folder: str) -> None:
        check_folder(name, self._adapters.get(name, folder), folder)
        await self._calls.load_adapter(name, folder)
        self._adapters[name] = folder

    async def unload_adapter(self, name: str) -> None:
        self._adapters.pop(name, None)
        await self._calls.unload_adapter(name)

    def close(self) -> None:
        self._intake.close()
        self._calls.close()

    async def _ask(self) -> None:
        """Have the replicas report, unless they did a moment ago. Only the first reports are waited
        for: a replica that does not answer holds nobody up."""
        is_new = self._asked is None or time.monotonic() - self._asked > _REPORT_SECONDS
        if is_new and (self._asking is None or self._asking.done()):
            self._asking = asyncio.create_task(self._take_in())
        if self._asked is None and self._asking is not None:
            await asyncio.shield(self._asking)

    async def _take_in(self) -> None:
        self._reports.take_in(await self._calls.reports())
        self._asked = time.monotonic()


def _shift_times(output: RequestOutput, by: float) -> None:
    """From a replica's clock to this process's, which it is ``by`` seconds behind, the time of a
    message's way included."""
    for sequence in output.outputs:
        if sequence.first_token_time is not None:
            sequence.first_token_time += by
        if sequence.finish_time is not None:
            sequence.finish_time += by
