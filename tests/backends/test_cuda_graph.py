"""CudaGraphSession's bookkeeping, with a replay that runs the captured call again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import trtspec.backends.cuda_graph as module
from trtspec.backends.cuda_graph import CapturedCalls, CudaGraphSession
from trtspec.backends.inputs import EngineInputs, RowInputs
from trtspec.errors import EngineError


class Adder:
    """A session: rows plus their request count into the cache and out."""

    def __init__(self) -> None:
        self.calls = 0

    def run(self, inputs: EngineInputs) -> list[Tensor]:
        self.calls += 1
        assert inputs.rows is not None
        ids, (cache,) = inputs.rows.input_ids, inputs.caches
        cache[: len(ids)] = ids
        return [ids * 10 + inputs.rows.context_lens.sum()]


class Replay:
    def __init__(self, call: Callable[[], list[Tensor]]) -> None:
        self.call = call
        self.outputs = call()

    def replay(self) -> None:
        for own, new in zip(self.outputs, self.call(), strict=True):
            own.copy_(new)


@pytest.fixture(autouse=True)
def recording(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The pool that each capture was given."""
    pools: list[Any] = []

    def record(call: Callable[[], list[Tensor]], pool: Any) -> Any:
        pools.append(pool)
        replay = Replay(call)
        return replay, replay.outputs, "pool"

    monkeypatch.setattr(module, "record", record)
    return pools


def call(rows: int, requests: int, cache: Tensor, first: int = 0) -> EngineInputs:
    ids = torch.arange(first, first + rows)
    others = [ids.clone() for _ in RowInputs._fields]
    given = RowInputs._make(others)._replace(
        input_ids=ids, context_lens=torch.ones(requests, dtype=torch.int64)
    )
    return EngineInputs(given, caches=(cache,))


def ids_of(inputs: EngineInputs) -> Tensor:
    assert inputs.rows is not None
    return inputs.rows.input_ids


def test_only_known_sizes_are_captured(recording: list[Any]) -> None:
    plain, cache = Adder(), torch.zeros(16, dtype=torch.int64)
    session = CudaGraphSession(plain, [(4, 1, 0), (8, 2, 0)])
    for rows, requests in ((4, 1), (8, 2), (3, 1), (4, 2), (4, 1), (8, 2), (8, 2)):
        inputs = call(rows, requests, cache, first=rows + requests)
        (found,) = session.run(inputs)
        assert torch.equal(found, ids_of(inputs) * 10 + requests)
        assert torch.equal(cache[:rows], ids_of(inputs))
    assert session.num_graphs == 2
    assert recording == [None, "pool"]


def test_stable_inputs_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = torch.zeros(16, dtype=torch.int64)
    session = CudaGraphSession(Adder(), [(4, 1, 0)])
    inputs = call(4, 1, cache)
    session.run(inputs)
    ids_of(inputs).add_(5)
    monkeypatch.setattr(Tensor, "copy_", None)  # the fake's own replay would fail as well
    captured = session._buffers[4, 1, 0]
    assert session._fill(captured, inputs, 4)
    with pytest.raises(TypeError):
        session._fill(captured, call(4, 1, cache), 4)


def test_other_caches_run_plainly() -> None:
    first, second = (torch.zeros(8, dtype=torch.int64) for _ in range(2))
    session = CudaGraphSession(Adder(), [(4, 1, 0)])
    session.run(call(4, 1, first, 1))
    session.run(call(4, 1, second, 2))
    assert first[:4].tolist() == [1, 2, 3, 4] and second[:4].tolist() == [2, 3, 4, 5]


def test_other_shapes_and_failures_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = torch.zeros(8, dtype=torch.int64)
    session = CudaGraphSession(Adder(), [(4, 1, 0), (8, 1, 0)])
    inputs = call(4, 1, cache)
    session.run(inputs)
    assert inputs.rows is not None
    odd = inputs.rows._replace(block_tables=torch.zeros(2, dtype=torch.int64))
    with pytest.raises(EngineError, match=r"captured with an input of shape \[4\]"):
        session.run(inputs._replace(rows=odd))

    def fail(run: Any, pool: Any) -> Any:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(module, "record", fail)
    with pytest.raises(EngineError, match=r"8 rows could not be captured .*out of memory"):
        session.run(call(8, 1, cache))


def test_calls_share_memory_and_follow_their_buffers(recording: list[Any]) -> None:
    """Two graphs in turn, the second over what the first puts out."""
    graphs, state, made = CapturedCalls(), torch.zeros(3), list[str]()

    def advance() -> list[Tensor]:
        made.append("advance")
        state.add_(1)
        return [state * 10]

    def unknown() -> list[Tensor]:
        return [torch.ones(1)]

    assert graphs.run(("advance", 3), unknown)[0].tolist() == [1.0], "not captured: it is called"
    graphs.capture(("advance", 3), advance, "an advance of 3 requests")
    (tens,) = graphs.run(("advance", 3), unknown)
    graphs.capture(("double", 3), lambda: [tens * 2], "a doubling")
    assert recording == [None, "pool"] and len(graphs) == 2
    state.fill_(4)
    assert graphs.run(("advance", 3), unknown)[0].tolist() == [50.0] * 3
    assert graphs.run(("double", 3), unknown)[0].tolist() == [100.0] * 3
    assert graphs.run(("advance", 4), unknown)[0].tolist() == [1.0]


def test_a_call_that_cannot_be_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    def record(call: Callable[[], list[Tensor]], pool: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(module, "record", record)
    graphs = CapturedCalls()
    with pytest.raises(EngineError, match=r"a verification of 8 rows could not .* not permitted"):
        graphs.capture("verify", lambda: [], "a verification of 8 rows")
    assert len(graphs) == 0
