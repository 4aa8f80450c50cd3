"""A group of replicas: what happens to requests whose replica ends, and what is reported."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import replace

import pytest

from trtspec.config.sampling import SamplingParams
from trtspec.errors import EngineError, RequestError
from trtspec.executor.executor_metrics import ExecutorFigures
from trtspec.llmapi.limits import Limits
from trtspec.llmapi.outputs import CompletionOutput, EngineLoad, RequestOutput
from trtspec.serve.engine_client import (
    EngineFacts,
    EngineLostError,
    GenerateRequest,
    ReplicaFigures,
)
from trtspec.serve.replicas.group import ReplicaGroup
from trtspec.serve.replicas.replica import ReplicaFacts
from trtspec.serve.replicas.report import Report, Reports

REQUEST = GenerateRequest(([1, 2, 3],), SamplingParams(max_tokens=4), stream=True)
LOST = EngineLostError("the replica ended")
IDLE = EngineLoad(0, 0, 0.0, 0, 0, 0.0)
Message = RequestOutput | Exception


def gain(text: str, end: str | None = None, at: float = 0.0, request_id: int = 1) -> RequestOutput:
    sequence = CompletionOutput(0, 7, text=text, finish_reason=end, first_token_time=at)
    return RequestOutput(request_id, None, [], [sequence])


def report(name: str, tokens: int = 0, running: int = 0) -> Report:
    load = replace(IDLE, num_running=running, num_generated_tokens=tokens)
    figures = ExecutorFigures(num_engine_steps=tokens, drafts=({"draft": name},))
    return Report(name, load, figures)


class Scripted:
    """Calls that tell what is written, one script a call; their clock runs ``ahead``."""

    def __init__(self, *scripts: Iterable[Message], ahead: float = 0.0) -> None:
        self.scripts: Iterator[Iterable[Message]] = iter(scripts)
        self.up = [report("a"), report("b")]
        self.num_open = 0
        self.folders: list[str | None] = []
        self._ahead = ahead

    async def generate(
        self, request: GenerateRequest, folder: str | None
    ) -> AsyncGenerator[tuple[float, list[RequestOutput]], None]:
        assert request.prompts == ({"prompt_token_ids": [1, 2, 3]},)
        self.folders.append(folder)
        self.num_open += 1
        try:
            for message in next(self.scripts):
                await asyncio.sleep(0)
                if isinstance(message, Exception):
                    raise message
                yield time.monotonic() + self._ahead, [message]
        finally:
            self.num_open -= 1

    async def reports(self) -> Sequence[Report]:
        return self.up

    async def load_adapter(self, name: str, folder: str) -> None: ...

    async def unload_adapter(self, name: str) -> None: ...

    def close(self) -> None: ...


def group_over(calls: Scripted, may_be_none: bool = False) -> ReplicaGroup:
    facts = EngineFacts("f", Limits(4, 64, 16), 10, ())
    return ReplicaGroup(calls, ReplicaFacts(facts, None, {}), 2, may_be_none)


def run(
    calls: Scripted, use: Callable[[ReplicaGroup], Coroutine[None, None, None]]
) -> tuple[int, int]:
    """Run a coroutine over a group, which is closed then: how many requests were sent again, and
    how many were lost."""
    group = group_over(calls)

    async def whole() -> ReplicaFigures | None:
        await use(group)
        return await group.replicas()

    try:
        figures = asyncio.run(whole())
    finally:
        group.close()
    assert not calls.num_open and figures is not None
    return figures.num_resent, figures.num_lost


async def texts(group: ReplicaGroup, request: GenerateRequest = REQUEST) -> list[str]:
    return [o.outputs[0].text async for outputs in group.generate(request) for o in outputs]


ACCEPTED = gain("")


@pytest.mark.parametrize("lost", [[LOST], [ACCEPTED, LOST]])
def test_a_request_that_gained_nothing_goes_to_another_replica(lost: list[Message]) -> None:
    """Whoever waits for it sees one answer, which was accepted once."""

    async def ask(group: ReplicaGroup) -> None:
        assert await texts(group) == ["", "x", "y"]

    whole = [ACCEPTED, gain("x"), gain("y", "length")]
    assert run(Scripted(lost, lost, whole), ask) == (2, 0)


def test_it_is_told_at_once_that_a_request_is_accepted_and_its_id_stays() -> None:
    """A stream that waits for long is kept alive from then on."""

    async def ask(group: ReplicaGroup) -> None:
        stream = group.generate(REQUEST)
        assert [output.request_id for output in await anext(stream)] == [1]
        assert next(first) is LOST
        assert [(o.request_id, o.outputs[0].text) async for each in stream for o in each] == [
            (1, "x"),
            (1, "y"),
        ]

    first = iter([ACCEPTED, LOST, LOST])
    gains = [gain("", request_id=5), gain("x", request_id=5), gain("y", "length", request_id=5)]
    assert run(Scripted(first, gains), ask) == (1, 0)


def test_what_is_not_streamed_is_sent_again_though_a_prompt_was_done() -> None:
    async def ask(group: ReplicaGroup) -> None:
        request = replace(REQUEST, stream=False)
        assert await texts(group, request) == ["", "x", "y"]
        with pytest.raises(EngineError, match="the step failed"):
            async for outputs in group.generate(request):
                told.append(outputs[0].outputs[0].finish_reason)

    told: list[str | None] = []
    whole = [ACCEPTED, gain("x", "length"), gain("y", "length")]
    failed = [ACCEPTED, gain("", "error"), EngineError("the step failed")]
    assert run(Scripted([*whole[:2], LOST], whole, failed), ask) == (1, 0)
    assert told == [None, "error"]


def test_a_request_is_lost_with_the_last_replica() -> None:
    async def ask(group: ReplicaGroup) -> None:
        with pytest.raises(EngineLostError):
            async for _ in group.generate(REQUEST):
                group._reports.take_in([])

    assert run(Scripted([ACCEPTED, LOST]), ask) == (0, 1)


def test_a_request_that_has_begun_fails_with_its_replica() -> None:
    async def ask(group: ReplicaGroup) -> None:
        told = []
        with pytest.raises(EngineLostError, match="the replica ended"):
            async for outputs in group.generate(REQUEST):
                told += [output.outputs[0].text for output in outputs]
        assert told == ["", "x"]

    calls = Scripted([ACCEPTED, gain("x"), LOST], [ACCEPTED, gain("x", "length")])
    assert run(calls, ask) == (0, 1)


def test_a_request_that_ends_replicas_does_not_end_them_all() -> None:
    async def ask(group: ReplicaGroup) -> None:
        with pytest.raises(EngineLostError):
            await texts(group)

    calls = Scripted(*[[ACCEPTED, LOST]] * 3, [ACCEPTED, gain("x", "length")])
    run(calls, ask)
    assert len(list(calls.scripts)) == 1


def test_errors_of_a_request_are_its_own() -> None:
    async def ask(group: ReplicaGroup) -> None:
        with pytest.raises(RequestError, match="no such stop"):
            await texts(group)
        with pytest.raises(RequestError, match="empty"):
            await texts(group, replace(REQUEST, prompts=("",)))

    run(Scripted([RequestError("no such stop")]), ask)


def test_closing_a_stream_ends_the_call() -> None:
    async def ask(group: ReplicaGroup) -> None:
        stream = group.generate(REQUEST)
        assert await anext(stream) == [ACCEPTED]
        assert calls.num_open == 1
        await stream.aclose()
        assert calls.num_open == 0

    calls = Scripted([ACCEPTED, gain("x"), gain("y"), gain("z", "length")])
    run(calls, ask)


def test_times_are_those_of_this_process() -> None:
    async def ask(group: ReplicaGroup) -> None:
        before = time.monotonic()
        (last,) = [o async for outputs in group.generate(REQUEST) for o in outputs][1:]
        told = last.outputs[0].first_token_time
        assert told is not None and before <= told + 1e-3 and told <= time.monotonic()

    there = time.monotonic() + 1000.0
    run(Scripted([ACCEPTED, gain("x", "length", at=there)], ahead=1000.0), ask)


def test_none_up_is_said_at_once_unless_there_may_be_none() -> None:
    async def ask(group: ReplicaGroup) -> None:
        with pytest.raises(EngineLostError, match="no replica is up"):
            await texts(group)

    calls = Scripted([ACCEPTED, gain("x", "length")])
    calls.up = []
    run(calls, ask)
    group = group_over(calls, may_be_none=True)
    assert asyncio.run(texts(group)) == ["", "x"]
    group.close()


def test_an_adapter_is_told_with_its_folder() -> None:
    async def ask(group: ReplicaGroup) -> None:
        await group.load_adapter("low", "/adapters/low")
        await group.load_adapter("low", "/adapters/low")
        with pytest.raises(RequestError, match="is loaded from /adapters/low"):
            await group.load_adapter("low", "/adapters/high")
        await texts(group, replace(REQUEST, adapter="low"))
        await group.unload_adapter("low")
        assert dict(group.adapters) == {}

    calls = Scripted([ACCEPTED, gain("x", "length")])
    run(calls, ask)
    assert calls.folders == ["/adapters/low"]


def test_counters_never_run_backwards() -> None:
    """Replicas come and go, and some that seemed to be gone return."""
    reports = Reports()
    tokens = 0
    for number in range(200):
        names = [f"r{number // 2}", f"r{number // 2 + 1}"] if number % 7 else []
        reports.take_in([report(name, tokens=10, running=1) for name in names])
        assert reports.load.num_running == len(names)
        assert reports.load.num_generated_tokens >= tokens
        tokens = reports.load.num_generated_tokens
        assert reports.figures.num_engine_steps == tokens == 10 * reports.num_started
        assert [draft["draft"] for draft in reports.figures.drafts] == names
    assert reports.num_started == 101
