"""Handles: waiting, streaming, aborting, many threads, and the end of an LLM."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest

from trtspec import LLM, RequestOutput, SamplingParams
from trtspec.errors import EngineError, RequestError
from trtspec.llmapi.handle import GenerationHandle

from .. import inside
from ..e2e.helpers import assert_no_leak
from .conftest import TextModel

PROMPTS = ["the cat sat", "a rat ate", "that is", "mat?", "x" * 40]
PARAMS = [SamplingParams(max_tokens=40, temperature=0.8, seed=seed) for seed in range(5)]
LONG = SamplingParams(max_tokens=None, ignore_eos=True)


def text_of(output: RequestOutput) -> tuple[str, list[int]]:
    return output.outputs[0].text, output.outputs[0].token_ids


def check_growth(snapshots: list[RequestOutput], expected: RequestOutput) -> None:
    """Each snapshot extends the one before, none is changed later, the last is the result."""
    assert not any(snapshot.finished for snapshot in snapshots[:-1])
    for before, after in pairwise(snapshots):
        for old, new in zip(before.outputs, after.outputs, strict=True):
            assert new.text.startswith(old.text)
            assert new.token_ids[: len(old.token_ids)] == old.token_ids
            assert old.metrics.num_steps <= new.metrics.num_steps
        assert any(
            len(new.token_ids) > len(old.token_ids) or new.finished > old.finished
            for old, new in zip(before.outputs, after.outputs, strict=True)
        )
    last = snapshots[-1]
    assert last.finished
    for old, new in zip(last.outputs, expected.outputs, strict=True):
        assert (old.text, old.token_ids) == (new.text, new.token_ids)


def test_streaming(any_llm: LLM) -> None:
    expected = any_llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    handles = [
        any_llm.generate_async(prompt, params, streaming=True)
        for prompt, params in zip(PROMPTS, PARAMS, strict=True)
    ]
    for handle, output in zip(handles, expected, strict=True):
        snapshots = list(handle)
        check_growth(snapshots, output)
        steps = snapshots[-1].outputs[0].metrics.num_steps
        assert len(snapshots) == steps + 1  # one a verify step, and the prefill's token
        assert handle.result() is snapshots[-1]
        assert list(handle) == snapshots[-1:]  # nothing more, and no waiting


def test_streaming_many_samples(any_llm: LLM) -> None:
    params = SamplingParams(max_tokens=20, temperature=0.8, seed=3, n=3, logprobs=1)
    expected = any_llm.generate(PROMPTS[0], params)
    snapshots = list(any_llm.generate_async(PROMPTS[0], params, streaming=True))
    check_growth(snapshots, expected)
    for snapshot in snapshots:
        for completion in snapshot.outputs:
            assert len(completion.logprobs or []) == len(completion.token_ids)


def test_text_that_a_stop_string_takes_back_is_never_streamed(any_llm: LLM) -> None:
    full = any_llm.generate(PROMPTS[0], PARAMS[0]).outputs[0].text
    stop = full[20:28]
    params = SamplingParams(max_tokens=40, temperature=0.8, seed=0, stop=stop)
    snapshots = list(any_llm.generate_async(PROMPTS[0], params, streaming=True))
    assert snapshots[-1].outputs[0].text == full[: full.index(stop)]
    for snapshot in snapshots:
        assert full[: full.index(stop)].startswith(snapshot.outputs[0].text)


def test_without_streaming_there_is_one_snapshot(llm: LLM) -> None:
    (only,) = llm.generate_async(PROMPTS[0], PARAMS[0])
    assert text_of(only) == text_of(llm.generate(PROMPTS[0], PARAMS[0]))


def test_asyncio(any_llm: LLM) -> None:
    expected = any_llm.generate(PROMPTS, PARAMS, use_tqdm=False)

    async def stream(index: int) -> list[RequestOutput]:
        handle = any_llm.generate_async(PROMPTS[index], PARAMS[index], streaming=True)
        return [snapshot async for snapshot in handle]

    async def run() -> None:
        for snapshots, output in zip(
            await asyncio.gather(*map(stream, range(5))), expected, strict=True
        ):
            check_growth(snapshots, output)
        handles = [
            any_llm.generate_async(prompt, params)
            for prompt, params in zip(PROMPTS, PARAMS, strict=True)
        ]
        results = [await handle for handle in handles]
        assert list(map(text_of, results)) == list(map(text_of, expected))
        assert await handles[0].aresult() is results[0]

    asyncio.run(run())


def test_abort(any_llm: LLM) -> None:
    """It ends with what it has; its neighbours never notice."""
    alone = any_llm.generate(PROMPTS[1], PARAMS[1])
    long = any_llm.generate_async(PROMPTS[0], LONG, streaming=True)
    beside = any_llm.generate_async(PROMPTS[1], PARAMS[1])
    seen = [next(iter(long)) for _ in range(3)][-1]
    long.abort()
    result = long.result()
    assert result.outputs[0].finish_reason == "abort"
    assert result.outputs[0].token_ids[: len(seen.outputs[0].token_ids)] == (
        seen.outputs[0].token_ids
    )
    assert len(result.outputs[0].token_ids) < 200
    assert text_of(beside.result()) == text_of(alone)
    long.abort()  # of no effect
    assert_idle(any_llm)


def test_abort_of_waiting_requests_and_of_samples(text_model: TextModel) -> None:
    with text_model.open("chain", max_batch_size=1) as llm:
        running = llm.generate_async(PROMPTS[0], LONG, streaming=True)
        next(iter(running))
        waiting = llm.generate_async(PROMPTS[1], PARAMS[1])
        samples = llm.generate_async(PROMPTS[2], SamplingParams(n=3))
        for handle in (waiting, samples, running):
            handle.abort()
        for handle in (waiting, samples):
            output = handle.result(timeout=60)
            assert {c.finish_reason for c in output.outputs} == {"abort"}
            assert not any(c.token_ids for c in output.outputs)
        assert running.result(timeout=60).outputs[0].finish_reason == "abort"
        assert len(llm.generate(PROMPTS[3]).outputs[0].token_ids) > 0
        assert_idle(llm)


def assert_idle(llm: LLM) -> None:
    """Everything was given back; a request more makes sure that aborts have been seen to."""
    llm.generate([1], SamplingParams(max_tokens=1))
    executor = inside.executor(llm)
    assert not executor.has_work
    assert not executor._stops and not executor._sampler.live_requests
    assert not inside.worker(llm)._live
    assert not executor.metrics._requests
    assert_no_leak(llm)


def test_result_with_a_timeout(llm: LLM) -> None:
    handle = llm.generate_async(PROMPTS[0], LONG)
    with pytest.raises(TimeoutError, match=r"not finished after 0\.0 s"):
        handle.result(timeout=0.0)
    assert handle.result().outputs[0].finish_reason == "length"


def test_the_timeout_is_for_the_whole(llm: LLM) -> None:
    """A stream that grows all the time does not prolong it."""
    handle = llm.generate_async(PROMPTS[0], LONG, streaming=True)
    with pytest.raises(TimeoutError):
        handle.result(timeout=0.01)
    assert not handle._output.finished
    handle.abort()
    assert handle.result(timeout=60).outputs[0].finish_reason == "abort"


def test_a_cancelled_task_takes_nothing_away(llm: LLM) -> None:
    """Its thread goes on waiting; whoever asks later gets the result all the same."""

    async def run() -> RequestOutput:
        handle = llm.generate_async(PROMPTS[0], LONG)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(handle.aresult(), timeout=0.001)
        return await asyncio.wait_for(handle.aresult(), timeout=60)

    assert asyncio.run(run()).outputs[0].finish_reason == "length"


@pytest.mark.parametrize("streams", [False, True])
def test_a_cancelled_await_ends_its_request(llm: LLM, streams: bool) -> None:
    """As with `asyncio.timeout`: nobody is left who would read the rest."""

    async def run() -> RequestOutput:
        handle = llm.generate_async(PROMPTS[0], LONG, streaming=streams)

        async def read() -> None:
            async for _ in handle:
                pass

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await (read() if streams else handle)
        return await asyncio.wait_for(handle.aresult(), timeout=60)

    assert asyncio.run(run()).outputs[0].finish_reason == "abort"
    assert_idle(llm)


def test_an_interrupt_aborts_what_was_started(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: GenerationHandle, timeout: float | None = None) -> RequestOutput:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(GenerationHandle, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(PROMPTS, LONG, use_tqdm=False)
    before = llm.get_metrics()["num_steps"]
    assert_idle(llm)
    assert llm.get_metrics()["num_steps"] - before < 100


def test_a_failed_request_raises_for_each_caller(llm: LLM) -> None:
    """An error of its own each time, so that tracebacks do not pile up."""
    params = SamplingParams(bad_words=[[token] for token in range(300)])
    handle = llm.generate_async(PROMPTS[0], params, streaming=True)
    with pytest.raises(RequestError, match="every token excluded") as first:
        list(handle)
    with pytest.raises(RequestError) as second:
        handle.result()
    assert first.value is not second.value
    assert handle.wait().error is not None

    async def run() -> None:
        with pytest.raises(RequestError, match="every token excluded"):
            await llm.generate_async(PROMPTS[0], params)

    asyncio.run(run())


def test_many_threads(any_llm: LLM) -> None:
    """Callers share batches and get their own texts."""
    expected = list(map(text_of, any_llm.generate(PROMPTS, PARAMS, use_tqdm=False)))

    def call(turn: int) -> list[Any]:
        if turn % 2:
            outputs = any_llm.generate(PROMPTS, PARAMS, use_tqdm=False)
        else:
            pairs = zip(PROMPTS, PARAMS, strict=True)
            outputs = [any_llm.generate(prompt, params) for prompt, params in pairs]
        return list(map(text_of, outputs))

    with ThreadPoolExecutor(6) as pool:
        for result in pool.map(call, range(6)):
            assert result == expected
    assert_idle(any_llm)


def test_shutdown(text_model: TextModel) -> None:
    """What runs is aborted, twice is once, and afterwards every call says so."""
    with text_model.open("chain") as llm:
        handle = llm.generate_async(PROMPTS[0], LONG, streaming=True)
        next(iter(handle))
        llm.shutdown()
        llm.shutdown()
        assert handle.result(timeout=60).outputs[0].finish_reason == "abort"
        for call in (llm.generate, llm.generate_async):
            with pytest.raises(EngineError, match="shut down"):
                call(PROMPTS[0])
        handle.abort()
        assert llm.get_metrics()["num_steps"] > 0
    assert not any(thread is inside.worker(llm)._thread for thread in threading.enumerate())


def test_an_error_inside_the_context_ends_the_worker(text_model: TextModel) -> None:
    with pytest.raises(RequestError), text_model.open() as llm:
        llm.generate("", PARAMS[0])
    assert not inside.worker(llm)._thread.is_alive()


def test_a_forgotten_llm_ends_its_worker(text_model: TextModel) -> None:
    llm = text_model.open()
    thread = inside.worker(llm)._thread
    assert text_of(llm.generate(PROMPTS[0], PARAMS[0]))[0]
    del llm
    thread.join(timeout=60)
    assert not thread.is_alive()
