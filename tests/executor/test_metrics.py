"""One definition of every figure."""

from __future__ import annotations

import itertools
import pickle
import time
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtspec.errors import EngineError
from trtspec.executor.engines.buckets import Bucket
from trtspec.executor.engines.timer import CallTimes
from trtspec.executor.executor_metrics import ExecutorFigures, ExecutorMetrics
from trtspec.executor.metrics import SpeculativeMetrics

STEPS = st.lists(
    st.integers(0, 5).flatmap(
        lambda depth: st.tuples(
            st.integers(1, depth + 1),
            st.integers(depth, 9) if depth else st.just(0),
            st.just(depth),
        )
    ),
    max_size=20,
)


@dataclass
class Clock:
    num_calls: int = 0
    seconds: float = 0.0
    weight_bytes: int = 0
    kv_bytes: int = 0
    num_texts_over: int = 0
    bucket_times: dict[Bucket, CallTimes] = field(default_factory=dict)

    def call(self, seconds: float, weight_bytes: int, kv_bytes: int) -> None:
        self.num_calls += 1
        self.seconds += seconds
        bucket = Bucket(1, weight_bytes, kv_bytes)
        known = self.bucket_times.get(bucket, CallTimes())
        self.bucket_times[bucket] = known + CallTimes(1, seconds)
        self.weight_bytes += weight_bytes
        self.kv_bytes += kv_bytes


def test_worked_example() -> None:
    metrics = SpeculativeMetrics()
    for emitted in (4, 1, 3):
        metrics.record(emitted, drafted_nodes=3)
    metrics.record(1)  # nothing was drafted
    assert metrics.to_dict() == {
        "acceptance_length": 9 / 4,
        "acceptance_rate": 5 / 9,
        "num_steps": 4,
        "num_drafts": 3,
        "num_draft_tokens": 9,
        "num_accepted_tokens": 5,
        "num_emitted_tokens": 9,
        "num_accepted_tokens_per_pos": [2, 2, 1],
        "num_drafts_per_pos": [3, 3, 3],
        "acceptance_rate_per_pos": [2 / 3, 2 / 3, 1 / 3],
        "num_draft_tokens_per_source": [9],
        "num_accepted_tokens_per_source": [5],
        "histogram": [2, 0, 1, 1],
    }


def test_figures_by_source() -> None:
    """Of steps that had other members' drafts, and one whose tokens were forced."""
    metrics, more = SpeculativeMetrics(), SpeculativeMetrics()
    metrics.record(3, 5, 3, ([2, 3], [0, 2]))
    metrics.record(2, 2, 2, ([], []))
    more.record(2, 4, 2, ([1, 0, 3], [1, 0, 0]))
    metrics.merge(more)
    figures = metrics.to_dict()
    assert figures["num_draft_tokens_per_source"] == [3, 3, 3]
    assert figures["num_accepted_tokens_per_source"] == [1, 2, 0]
    assert figures["num_draft_tokens"] == 11 and figures["num_accepted_tokens"] == 4


def test_nothing_recorded() -> None:
    metrics = SpeculativeMetrics()
    assert metrics.acceptance_length == metrics.acceptance_rate == 0.0
    assert metrics.num_accepted_tokens_per_pos == metrics.acceptance_rate_per_pos == []


def test_full_acceptance_is_one() -> None:
    metrics = SpeculativeMetrics()
    for drafted in (4, 4, 2, 0):
        metrics.record(drafted + 1, drafted)
    assert metrics.acceptance_rate == 1.0
    assert metrics.num_drafts_per_pos == [3, 3, 2, 2]
    assert metrics.acceptance_rate_per_pos == [1.0] * 4


@given(STEPS)
def test_definitions_and_merge(steps: list[tuple[int, int, int]]) -> None:
    whole, halves = SpeculativeMetrics(), [SpeculativeMetrics(), SpeculativeMetrics()]
    for i, step in enumerate(steps):
        whole.record(*step)
        halves[i % 2].record(*step)
    emitted = sum(step[0] for step in steps)
    assert whole.num_steps == len(steps) and whole.num_emitted_tokens == emitted
    assert whole.num_accepted_tokens == emitted - len(steps)
    assert whole.num_accepted_tokens == sum(whole.num_accepted_tokens_per_pos)
    assert whole.num_drafts == sum(step[1] > 0 for step in steps)
    assert len(whole.num_accepted_tokens_per_pos) == max((step[2] for step in steps), default=0)
    assert SpeculativeMetrics.merged(halves).to_dict() == whole.to_dict()


def test_impossible_steps_are_our_bugs() -> None:
    for step in ((0, 1), (3, 1), (1, 1, 2)):
        with pytest.raises(AssertionError):
            SpeculativeMetrics().record(*step)


def test_executor_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps of 500 and 300 ms; the second one is a verify step."""
    now = iter((10.0, 10.5, 11.0, 11.3, 20.0))
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    target, drafts = Clock(), [Clock(), Clock()]
    metrics = ExecutorMetrics(target, drafts)
    metrics.record_verify(7, 3, 4)
    metrics.record_verify(8, 1, 4, 2)
    metrics.start_step()
    target.call(0.2, 1000, 5)
    metrics.end_step(verifies=False)
    metrics.start_step()
    target.call(0.1, 1000, 7)
    for draft in drafts:
        draft.call(0.05, 30, 1)
    metrics.end_step(verifies=True)
    assert metrics.of(7).histogram == [0, 0, 1] and metrics.of(9).num_steps == 0
    metrics.release(7)
    figures = metrics.to_dict()
    assert figures["num_engine_calls"] == 4 and figures["num_target_calls"] == 2
    assert figures["num_steps"] == 2 and figures["num_engine_steps"] == 2
    assert figures["step_ms"] == pytest.approx(400.0)
    assert figures["target_ms"] == pytest.approx(300.0)
    assert figures["host_ms"] == pytest.approx(400.0)
    assert figures["host_share"] == pytest.approx(0.5)
    assert figures["target_buckets"] == [
        {"requests": 1, "rows": 1000, "logits": logits, "num_calls": 1, "ms": pytest.approx(ms)}
        for logits, ms in ((5, 200.0), (7, 100.0))
    ]
    verify = {name: value for name, value in figures.items() if "verify" in name}
    assert verify == {
        "num_verify_steps": 1,
        "verify_ms": pytest.approx(300.0),
        "verify_target_ms": pytest.approx(100.0),
        "verify_draft_ms": pytest.approx(100.0),
        "verify_host_ms": pytest.approx(100.0),
        "verify_weight_bytes": 1060,
        "verify_kv_bytes": 9,
    }


@given(st.lists(st.tuples(st.integers(0, 2), STEPS, st.sampled_from([None, "a", "b"])), max_size=6))
def test_figures_of_several_executors_add_up(
    work: list[tuple[int, list[tuple[int, int, int]], str | None]],
) -> None:
    """To those of one that had done all of their work."""
    clocks = [Clock() for _ in range(4)]
    every = [ExecutorMetrics(clock, [clock]) for clock in clocks]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(time, "perf_counter", lambda: 0.0)
        for place, steps, adapter in work:
            for metrics in (every[place], every[3]):
                metrics.start_step()
            for clock in (clocks[place], clocks[3]):
                clock.call(0.25, 8, place)
            for metrics in (every[place], every[3]):
                for step in steps:
                    metrics.record_verify(0, *step, adapter=adapter)
                metrics.end_step(bool(steps), None if steps else EngineError("bad"))
                metrics.record_preemptions(place)
                metrics.record_prefix(9, place)
        *parts, whole = (pickle.loads(pickle.dumps(each.figures())) for each in every)
    assert ExecutorFigures.merged(parts).to_dict() == whole.to_dict()
    assert ExecutorFigures.merged([]).to_dict() == ExecutorMetrics().to_dict()


def test_an_executor_that_did_nothing() -> None:
    figures = ExecutorMetrics(Clock()).to_dict()
    assert figures["host_share"] == figures["step_ms"] == figures["draft_ms"] == 0.0


@given(st.lists(st.booleans(), max_size=30))
def test_failed_steps(fails: list[bool]) -> None:
    """All of them, those since the last good step, and why the latest failed."""
    metrics = ExecutorMetrics()
    for number, fail in enumerate(fails):
        metrics.start_step()
        metrics.end_step(verifies=True, failure=EngineError(str(number)) if fail else None)
    row = fails[::-1].index(False) if False in fails else len(fails)
    assert metrics.num_failed_steps_in_a_row == row
    assert metrics.to_dict()["num_failed_steps"] == sum(fails)
    latest = [str(number) for number, fail in enumerate(fails) if fail][-1:]
    assert [str(metrics.last_failure)] == (latest or ["None"])


def test_queue_and_cache() -> None:
    metrics = ExecutorMetrics()
    for queried, found in ((40, 0), (40, 32), (3, 0)):
        metrics.record_prefix(queried, found)
    for number in (0, 2, 1):
        metrics.record_preemptions(number)
    figures = metrics.to_dict()
    assert (figures["num_prefix_cache_queries"], figures["num_prefix_cache_hits"]) == (83, 32)
    assert figures["num_preemptions"] == 3


def test_an_adapter_appears_while_figures_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server is asked for its metrics on another thread than that of the steps."""
    metrics = ExecutorMetrics()
    metrics.record_verify(0, 1, 0, adapter="a")
    names = itertools.count()
    read = SpeculativeMetrics.to_dict

    def slow(self: SpeculativeMetrics) -> dict[str, Any]:
        metrics.record_verify(1, 1, 0, adapter=str(next(names)))
        return read(self)

    with monkeypatch.context() as patched:
        patched.setattr(SpeculativeMetrics, "to_dict", slow)
        metrics.to_dict()
    assert metrics.to_dict()["adapters"].keys() == {"a", *map(str, range(next(names)))}
