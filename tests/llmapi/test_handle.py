"""GenerationHandle alone: what iterations yield, whenever they are read, and their cost."""

from __future__ import annotations

import copy
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtspec.errors import EngineError
from trtspec.executor.metrics import SpeculativeMetrics
from trtspec.executor.step.step_result import TokenLogprobs
from trtspec.llmapi.handle import GenerationHandle
from trtspec.llmapi.outputs import CompletionOutput, RequestOutput


def start(samples: int, streaming: bool = True) -> GenerationHandle:
    outputs = [CompletionOutput(index, seed=7) for index in range(samples)]
    return GenerationHandle(RequestOutput(3, "a", [1], outputs), streaming, lambda output: None)


def grow(handle: GenerationHandle, index: int, count: int, end: str | None = None) -> None:
    """What the worker does for a sequence in a step."""
    completion = handle.output.outputs[index]
    with handle.updating():
        for _ in range(count):
            token = len(completion.token_ids)
            completion.token_ids.append(token)
            completion.text += chr(97 + token % 26)
            if completion.logprobs is None:
                completion.logprobs = []
            completion.logprobs.append(TokenLogprobs(token, -0.5, {}))
        if count:
            completion.first_token_time = completion.first_token_time or 1.0
            completion.metrics.record(count, count)
        if end is not None:
            completion.finish_reason, completion.finish_time, completion.stop_reason = end, 2.0, 9
            completion.kv_transfer_params = {"hidden_states_path": "x"}
            if end == "error":
                handle.output.error = handle.output.error or EngineError(f"sequence {index}")
        handle.publish(completion)


def plain(output: RequestOutput) -> dict[str, Any]:
    """Everything that an output says, as values to compare."""
    said = copy.deepcopy(vars(output))
    said["error"] = str(output.error)
    said["outputs"] = [
        {**vars(c), "metrics": c.metrics.to_dict()} for c in copy.deepcopy(output.outputs)
    ]
    return said


@given(
    samples=st.integers(1, 3),
    steps=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(0, 3)), max_size=25),
    fails=st.sampled_from([None, 0, 1]),
)
def test_snapshots_are_those_of_their_steps(
    samples: int, steps: list[tuple[int, int, int]], fails: int | None
) -> None:
    """Read at once, a few steps later or after the end: each is what the output was at its step."""
    handle = start(samples)
    reader = iter(handle)
    expected: list[dict[str, Any]] = []
    seen: list[dict[str, Any]] = []
    error = None

    def read(count: int) -> None:
        nonlocal error
        while count and len(seen) < len(expected) and error is None:
            try:
                seen.append(plain(next(reader)))
            except EngineError as raised:
                error = str(raised)
            count -= 1

    def step(index: int, count: int, end: str | None = None) -> None:
        grow(handle, index, count, end)
        expected.append(plain(handle.output))

    for index, count, reads in steps:
        step(index % samples, count)
        read(reads)
    for index in range(samples):
        step(index, 1, "error" if index == fails else "length")
        read(index)
    read(len(expected))
    if fails is None or fails >= samples:
        assert seen == expected and error is None
        assert list(handle) == [handle.output]
    else:
        assert error == f"sequence {fails}" and seen == expected[: len(seen)]
        first = next(i for i, said in enumerate(expected) if said["error"] != "None")
        assert len(seen) == first


def held_bytes(tokens: int, streaming: bool) -> int:
    """What the handle of so many tokens holds when nobody has read a snapshot."""
    tracemalloc.start()
    try:
        handle = start(1, streaming)
        for _ in range(tokens):
            grow(handle, 0, 1)
        grow(handle, 0, 0, "length")
        assert len(handle.result(0).outputs[0].token_ids) == tokens
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_what_nobody_reads_costs_memory_by_its_length_only() -> None:
    short, long = held_bytes(500, True), held_bytes(2000, True)
    assert long < 6 * short, "four times the tokens, sixteen times the memory?"
    assert long < 10 * held_bytes(2000, False)


def test_a_snapshot_is_nobody_elses() -> None:
    """Its reader may change it, and later steps do not."""
    handle = start(1)
    for _ in range(3):
        grow(handle, 0, 2)
    reader = iter(handle)
    first = next(reader)
    before = plain(first)
    first.outputs[0].token_ids.append(99)
    first.outputs[0].metrics = SpeculativeMetrics()
    grow(handle, 0, 1, "stop")
    second, third, last = reader
    assert before["outputs"][0]["token_ids"] == [0, 1]
    assert second.outputs[0].token_ids == [0, 1, 2, 3] and third.outputs[0].text == "abcdef"
    assert last is handle.output and last.outputs[0].token_ids == list(range(7))


@pytest.mark.parametrize("streaming", [True, False])
def test_ended_handles_need_no_worker(streaming: bool) -> None:
    handle = start(1, streaming)
    grow(handle, 0, 1, "length")
    assert list(handle) == [handle.output] == [handle.result()]
