"""A load on a server: order, numbers at a time, arrivals, and what an interruption leaves."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from trtspec.bench.serving.client import ServeClient
from trtspec.bench.serving.load import LoadPoint, LoadTest, arrivals
from trtspec.bench.serving.prompts import PromptSets
from trtspec.bench.serving.run import PointRun, run_point
from trtspec.bench.serving.sweep import measure
from trtspec.errors import ConfigError

from .fake_openai import Behaviour, Exchange, FakeServer, fake_server, well

AT_ONCE = LoadPoint(math.inf, None)


def run(
    server: FakeServer, point: LoadPoint, count: int, stop_after: int | None = None
) -> PointRun:
    """Prompts "0", "1", ...; cancelled when `stop_after` of them have ended."""
    prompts = [str(i) for i in range(count)]

    async def go() -> PointRun:
        ended, enough = 0, asyncio.Event()

        def end() -> None:
            nonlocal ended
            ended += 1
            if ended == stop_after:
                enough.set()

        async with ServeClient(server.url) as client:
            task = asyncio.create_task(run_point(client, LoadTest("x"), point, "m", prompts, end))
            if stop_after is not None:
                await enough.wait()
                task.cancel()
            return await task

    return asyncio.run(go())


def together(count: int) -> Behaviour:
    """Nobody is answered before `count` are waiting for it."""
    barrier = asyncio.Barrier(count)

    async def answer(exchange: Exchange) -> None:
        await barrier.wait()
        await well(exchange)

    return answer


def test_all_at_once() -> None:
    with fake_server(together(24)) as server:
        result = run(server, AT_ONCE, 24)
    assert [record.index for record in result.records] == list(range(24))
    assert all(record.error is None for record in result.records)
    assert sorted(server.texts, key=int) == [str(i) for i in range(24)]
    assert server.most == 24 and not result.is_interrupted
    assert sorted(e.body["seed"] for e in server.exchanges) == list(range(24))


@pytest.mark.parametrize("most", [1, 3])
def test_never_more_than_the_limit(most: int) -> None:
    with fake_server(together(most)) as server:
        result = run(server, LoadPoint(math.inf, most), 9)
    assert server.most == most and len(result.records) == 9
    assert server.connections == most
    if most == 1:
        assert server.texts == [str(i) for i in range(9)]


def test_a_request_that_waits_for_its_turn_is_timed_from_its_sending() -> None:
    with fake_server() as server:
        result = run(server, LoadPoint(math.inf, 1), 4)
    ends = [record.start + (record.e2e or 0) for record in result.records]
    for i in range(3):
        assert result.records[i + 1].start >= ends[i]
    assert result.duration >= ends[-1]


def test_arrivals_are_kept() -> None:
    """Requests leave no sooner than their time; how late is the machine's affair."""
    with fake_server() as server:
        result = run(server, LoadPoint(100.0, None), 12)
    starts = [record.start for record in result.records]
    assert starts == sorted(starts)
    times = arrivals(12, 100.0, LoadTest("x").seed)
    assert all(start >= time for start, time in zip(starts, times, strict=True))


def test_failures_do_not_stop_the_others() -> None:
    async def odd_ones_fail(exchange: Exchange) -> None:
        if int(exchange.text) % 2:
            await exchange.reply(503, '{"detail": "down"}')
        else:
            await well(exchange)

    with fake_server(odd_ones_fail) as server:
        result = run(server, LoadPoint(math.inf, 4), 10)
    errors = [record.error for record in result.records]
    assert errors == [None, "HTTP 503: down"] * 5


def test_an_interruption_keeps_what_has_ended_and_hangs_up() -> None:
    async def few_end(exchange: Exchange) -> None:
        if int(exchange.text) < 3:
            return await well(exchange)
        await exchange.open()
        await exchange.tokens("a", reason=None)
        await asyncio.sleep(60)
        return None

    with fake_server(few_end) as server:
        result = run(server, LoadPoint(math.inf, 5), 20, stop_after=3)
    assert result.is_interrupted and [r.index for r in result.records] == [0, 1, 2]
    assert len(server.exchanges) < 20


def counters(drafts: int, tokens: int, accepted: int) -> str:
    return (
        "# TYPE vllm:spec_decode_num_drafts counter\n"
        f'vllm:spec_decode_num_drafts_total{{engine="0"}} {drafts}.0\n'
        f'vllm:spec_decode_num_draft_tokens_total{{engine="0"}} {tokens}.0\n'
        f'vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {accepted}.0\n'
    )


def sweep(server: FakeServer, load: LoadTest, sets: list[list[str]], warmup: int) -> Any:
    points: list[dict[str, Any]] = []

    async def go() -> bool:
        async with ServeClient(server.url) as client:
            prompts = PromptSets(sets)
            return await measure(client, load, prompts, "m", warmup, points.append, False)

    return asyncio.run(go()), points


def test_points_in_turn_each_with_its_own_counters() -> None:
    load = LoadTest("x", num_prompts=2, max_concurrencies=(1, 2))
    texts = iter(
        [counters(5, 20, 9), counters(15, 60, 29), counters(15, 60, 29), counters(17, 68, 37)]
    )
    with fake_server(metrics=texts) as server:
        is_whole, points = sweep(server, load, [["a", "b"], ["c", "d"]], warmup=3)
    assert is_whole and [point["max_concurrency"] for point in points] == [1, 2]
    assert [point["acceptance"]["num_drafts"] for point in points] == [10, 2]
    assert [point["acceptance"]["acceptance_length"] for point in points] == [3.0, 5.0]
    assert [point["completed"] for point in points] == [2, 2]
    warm, measured = server.texts[:3], server.texts[3:]
    assert measured[:2] == ["a", "b"] and set(measured[2:]) == {"c", "d"}
    assert len(set(warm)) == 3 and not set(warm) & set(measured)
    assert points[0]["prompts_sha256"] != points[1]["prompts_sha256"]


def test_a_server_without_metrics_has_no_acceptance() -> None:
    with fake_server() as server:
        is_whole, points = sweep(server, LoadTest("x", num_prompts=1), [["a"]], warmup=0)
    assert is_whole and points[0]["acceptance"] is None
    assert [path for path, _ in server.gets] == ["/metrics"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"request_rates": (0.0,)}, "request_rate 0.0 must be above 0"),
        ({"request_rates": (math.nan,)}, "request_rate nan"),
        ({"request_rates": (1.0, 1.0)}, "no value twice"),
        ({"request_rates": ()}, "at least one value"),
        ({"max_concurrencies": (0,)}, "max_concurrency 0 must be at least 1"),
        ({"request_rates": (1.0, 2.0), "max_concurrencies": (1, 2)}, "have 2 and 2 values"),
        ({"num_prompts": 0}, "num_prompts 0"),
        ({"max_tokens": 0}, "max_tokens 0"),
        ({"temperature": -1.0}, "temperature -1.0"),
        ({"endpoint": "/v1/embeddings"}, "is none of /v1/completions"),
        ({"extra_body": {"n": 2, "top_p": 0.5}}, "may not hold n;"),
    ],
)
def test_loads_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LoadTest("x", **options)


def test_bodies_hold_what_is_asked_for() -> None:
    extra = {"top_p": 0.5, "stream_options": None, "seed": None}
    body = LoadTest("x", ignore_eos=True, extra_body=extra).body("m", "p", 0)
    assert body["ignore_eos"] is True and body["top_p"] == 0.5
    assert "stream_options" not in body and "seed" not in body
