"""Running a load: arrivals, the limit of concurrency, and what is left after an interruption."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass

from trtspec.bench.serving.answer import RequestRecord
from trtspec.bench.serving.client import ServeClient
from trtspec.bench.serving.load import LoadPoint, LoadTest, arrivals


@dataclass(frozen=True)
class PointRun:
    """What one point measured. records: of the requests that came to an end, well or not, in the
    order of their prompts; duration: seconds from the first sending to the last end."""

    records: tuple[RequestRecord, ...]
    duration: float
    num_prompts: int
    is_interrupted: bool


async def run_point(
    client: ServeClient,
    load: LoadTest,
    point: LoadPoint,
    model: str,
    prompts: Sequence[str],
    on_end: Callable[[], object] = lambda: None,
) -> PointRun:
    """Send every prompt at its time and wait for all answers.

    With a limit of concurrency a request waits here, in the order of arrival, until another one
    has ended; its times count from when it is sent. Cancellation stops everything, and what has
    ended by then is returned: a caller must look at `is_interrupted` and end. ``on_end`` is called
    whenever a request has ended.
    """
    times = arrivals(len(prompts), point.request_rate, load.seed)
    most = point.max_concurrency
    gate: AbstractAsyncContextManager[object] = asyncio.Semaphore(most) if most else nullcontext()
    records: list[RequestRecord] = []
    began = client.clock()

    async def ask(index: int) -> None:
        async with gate:
            body = load.body(model, prompts[index], index)
            record = await client.generate(load.endpoint, body, index, began)
        records.append(record)
        on_end()

    tasks: list[asyncio.Task[None]] = []
    is_interrupted = False
    try:
        for index, time in enumerate(times):
            await asyncio.sleep(max(began + time - client.clock(), 0.0))
            tasks.append(asyncio.create_task(ask(index)))
        await asyncio.gather(*tasks)
    except asyncio.CancelledError:
        is_interrupted = True
        if (task := asyncio.current_task()) is not None:
            task.uncancel()  # it is dealt with here
    finally:
        duration = client.clock() - began
        for asked in tasks:
            asked.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    ordered = tuple(sorted(records, key=lambda record: record.index))
    return PointRun(ordered, duration, len(prompts), is_interrupted)


async def warm_up(
    client: ServeClient, load: LoadTest, model: str, prompts: Sequence[str], concurrency: int | None
) -> list[str]:
    """Ask prompts that are not measured; return the reasons of those that failed."""
    point = LoadPoint(float("inf"), concurrency)
    run = await run_point(client, load, point, model, prompts)
    if run.is_interrupted:
        raise asyncio.CancelledError
    return [record.error for record in run.records if record.error is not None]
