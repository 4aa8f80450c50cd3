"""What is told of requests piece by piece is all that they are."""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtspec import LLM, SamplingParams
from trtspec.errors import EngineError
from trtspec.llmapi.growth import growth
from trtspec.llmapi.handle import GenerationHandle
from trtspec.llmapi.outputs import CompletionOutput, RequestOutput

from .test_handle import grow, plain

STEP = st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(0, 3), st.integers(0, 2))


def start(request_id: int) -> GenerationHandle:
    outputs = [CompletionOutput(index, seed=7) for index in range(2)]
    return GenerationHandle(
        RequestOutput(request_id, "a", [1], outputs), False, lambda output: None
    )


async def told(handles: list[GenerationHandle], by_step: bool) -> tuple[list[Any], int]:
    """What the pieces make up, each as it travels to another process, and their number."""
    gains = growth(handles, by_step)
    outputs = pickle.loads(pickle.dumps(await anext(gains)))
    places = {output.request_id: place for place, output in enumerate(outputs)}
    number = 0
    async for gained in gains:
        number += 1
        then = copy.deepcopy(gained)
        for each in pickle.loads(pickle.dumps(gained)):
            outputs[places[each.request_id]].add(each)
        await asyncio.sleep(0)
        assert [*map(plain, gained)] == [*map(plain, then)], "a piece changes after it was told"
    return outputs, number


@given(steps=st.lists(STEP, max_size=30), by_step=st.booleans())
def test_the_pieces_make_up_the_whole(steps: list[tuple[int, ...]], by_step: bool) -> None:
    handles = [start(3), start(8)]

    async def run() -> tuple[list[Any], int]:
        reading = asyncio.create_task(told(handles, by_step))
        for prompt, index, tokens, rounds in steps:
            grow(handles[prompt], index, tokens)
            for _ in range(rounds):
                await asyncio.sleep(0)
        for handle in handles:
            grow(handle, 1, 0, "length")
            grow(handle, 0, 1, "stop")
        return await reading

    outputs, number = asyncio.run(run())
    assert [*map(plain, outputs)] == [plain(handle.output) for handle in handles]
    assert by_step or number <= len(handles)


@pytest.mark.parametrize("by_step", [True, False])
def test_a_failure_is_told_and_raised(by_step: bool) -> None:
    """Without waiting for the other sequences."""

    async def run() -> None:
        failing, other = start(3), start(8)
        gains = growth([failing, other], by_step)
        await anext(gains)
        grow(failing, 1, 2, "error")
        (gained,) = await anext(gains)
        (completion,) = gained.outputs
        assert (completion.finish_reason, completion.token_ids) == ("error", [0, 1])
        with pytest.raises(EngineError, match="sequence 1"):
            await asyncio.wait_for(anext(gains), 30.0)
        assert not failing._listeners and not other._listeners

    asyncio.run(run())


@pytest.mark.parametrize("delay", [0.0, 0.2])
def test_a_slow_reader_gets_steps_together(llm: LLM, delay: float) -> None:
    """And no thread waits."""
    params = SamplingParams(max_tokens=40, temperature=0.8, seed=1, n=2, logprobs=1)

    async def read() -> tuple[list[Any], Any]:
        handle = llm.generate_async("the cat", params)
        pieces = []
        async for gained in growth([handle]):
            pieces.append(gained)
            await asyncio.sleep(delay)
        return pieces, await handle

    llm.generate("the cat", params, use_tqdm=False)  # starts the threads of the loop
    threads = threading.active_count()
    (accepted, *pieces), output = asyncio.run(read())
    assert threading.active_count() <= threads
    assert (len(pieces) < 10) == (delay > 0)
    whole = accepted[0]
    for gained in pieces:
        whole.add(gained[0])
    assert plain(whole) == plain(output)
