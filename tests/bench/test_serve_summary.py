"""Figures from made-up records: every one can be checked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtspec.bench.serving.answer import RequestRecord
from trtspec.bench.serving.load import arrivals
from trtspec.bench.serving.summary import (
    failure_reasons,
    peak_concurrency,
    statistics,
    summarize,
)


def record(index: int, start: float, ttft: float, *gaps: float, **more: object) -> RequestRecord:
    e2e = ttft + sum(gaps)
    tokens = {"prompt_tokens": 10, "output_tokens": 2 * len(gaps) + 1, **more}
    return RequestRecord(index, start, ttft, e2e, gaps, **tokens)  # type: ignore[arg-type]


def test_every_figure() -> None:
    records = [
        record(0, 0.0, 0.5, 0.25, 0.25),  # 5 tokens in 1 s, TPOT 0.125
        record(1, 0.5, 1.0, 1.0),  # 3 tokens in 2 s, TPOT 0.5
        record(2, 1.0, 0.25),  # 1 token: no TPOT
        RequestRecord(3, 0.0, error="HTTP 429: full"),
    ]
    figures = summarize(records, 4.0, 6)
    expected = {
        "duration": 4.0, "num_prompts": 6, "completed": 3, "failed": 1, "num_unfinished": 2,
        "num_without_usage": 0, "total_input_tokens": 30, "total_output_tokens": 9,
        "request_throughput": 0.75, "output_throughput": 2.25, "total_token_throughput": 9.75,
        "max_concurrent_requests": 2,
        "mean_ttft_ms": 1750 / 3, "median_ttft_ms": 500, "p90_ttft_ms": 900, "p99_ttft_ms": 990,
        "mean_tpot_ms": 312.5, "median_tpot_ms": 312.5, "p90_tpot_ms": 462.5,
        "mean_itl_ms": 500, "median_itl_ms": 250, "p90_itl_ms": 850,
        "mean_e2el_ms": 3250 / 3, "median_e2el_ms": 1000, "p95_e2el_ms": 1900,
    }  # fmt: skip
    assert {name: figures[name] for name in expected} == pytest.approx(expected)


def test_without_usage_nothing_is_made_up() -> None:
    unknown = record(0, 0.0, 0.5, 0.5, prompt_tokens=None, output_tokens=None)
    figures = summarize([unknown, record(1, 0.0, 0.5, 0.5)], 2.0, 2)
    assert figures["num_without_usage"] == 1 and figures["request_throughput"] == 1
    names = ("total_input_tokens", "total_output_tokens", "output_throughput")
    assert [figures[name] for name in names] == [None] * 3
    assert figures["total_token_throughput"] is None and figures["median_itl_ms"] == 500
    assert figures["median_tpot_ms"] == 250  # of the request that has one


def test_when_all_failed() -> None:
    failed = [RequestRecord(i, 0.0, error=reason) for i, reason in enumerate("abb")]
    figures = summarize(failed, 1.0, 3)
    assert (figures["completed"], figures["failed"], figures["request_throughput"]) == (0, 3, 0)
    assert figures["mean_ttft_ms"] is None and figures["output_throughput"] is None
    assert failure_reasons(failed) == {"b": 2, "a": 1}
    assert list(failure_reasons(failed)) == ["b", "a"]
    assert summarize([], 0.0, 3)["request_throughput"] is None


@given(st.lists(st.floats(0, 1e4), min_size=1))
def test_percentiles_are_numpy_s(values: list[float]) -> None:
    found = statistics(values)
    assert found["mean"] == pytest.approx(np.mean(values))
    for name, q in (("median", 50), ("p90", 90), ("p95", 95), ("p99", 99)):
        assert found[name] == pytest.approx(np.quantile(values, q / 100))


def test_peak_concurrency() -> None:
    spans = [(0, 2), (1, 1), (2, 5), (1.5, 1.5)]
    records = [RequestRecord(i, start, 0.0, length) for i, (start, length) in enumerate(spans)]
    assert peak_concurrency(records) == 3  # at 1.5; at 2 two end as one starts
    assert peak_concurrency(records[:1] + records[2:3]) == 1
    assert peak_concurrency([]) == 0


@pytest.mark.parametrize("rate", [0.5, 1.0, 64.0])
def test_arrivals_have_their_rate_and_poisson_s_spread(rate: float) -> None:
    times = np.array(arrivals(4001, rate, seed=3))
    assert times[0] == 0 and times[-1] == pytest.approx(4000 / rate)
    gaps = np.diff(times)
    assert (gaps > 0).all() and gaps.mean() == pytest.approx(1 / rate)
    assert gaps.std() == pytest.approx(1 / rate, rel=0.1)  # as exponential gaps have it
    assert (gaps > 1 / rate).mean() == pytest.approx(math.exp(-1), abs=0.03)


def test_arrivals_are_those_of_their_seed() -> None:
    assert arrivals(9, 2.0, 1) == arrivals(9, 2.0, 1) != arrivals(9, 2.0, 2)
    assert arrivals(9, 4.0, 1) == pytest.approx([t / 2 for t in arrivals(9, 2.0, 1)])
    assert arrivals(3, math.inf, 1) == [0, 0, 0] and arrivals(1, 2.0, 1) == [0]
    assert arrivals(0, 2.0, 1) == []
