"""Rates of a machine: what follows from them, and that they are measured sensibly."""

from __future__ import annotations

import pytest
import torch

from trtspec.bench.ops import beside_reading
from trtspec.bench.report import floor
from trtspec.bench.report.floor import (
    LinearRate,
    MachineRates,
    MemorySpeed,
    linear_rates,
    measure_machine,
    ms_text,
    share_text,
)
from trtspec.errors import ConfigError
from trtspec.ops.bandwidth import read_bandwidth

RATES = MachineRates(
    "cpu",
    "bfloat16",
    2,
    20e9,
    (LinearRate(1, 10e9, 1e9), LinearRate(4, 5e9, 4e9), LinearRate(8, 2e9, 8e9)),
)
"""Products of 1 GB of weights take 100, 200 and 500 ms for 1, 4 and 8 rows."""


def test_arithmetic() -> None:
    assert RATES.memory_seconds(5e9) == pytest.approx(0.25)
    expected = {1: 0.1, 4: 0.2, 8: 0.5, 2: 0.1 + 0.1 / 3, 6: 0.35, 16: 1.0}
    for rows, seconds in expected.items():
        assert RATES.linear_seconds(1e9, rows) == pytest.approx(seconds)
    data = RATES.to_dict()
    assert data["read_bandwidth"] == 20e9 and data["linear"][1]["rows"] == 4
    assert "20.0 GB/s (2 threads, cpu)" in RATES.describe()


def test_a_floor_above_the_time_is_none() -> None:
    """Whatever was read so fast was read faster than the memory was measured to be."""
    for seconds in (0.25, 0.5, 0.25 / 1.04):
        floor_of = RATES.floor_of(5e9, seconds)
        assert floor_of.share == pytest.approx(0.25 / seconds)
        assert floor_of.ms == pytest.approx(250) and share_text(floor_of.share).endswith("%")
    for seconds in (0.25 / 1.06, 0.25 / 4.66):
        floor_of = RATES.floor_of(5e9, seconds)
        assert floor_of.to_dict() == {"memory_floor_ms": None, "memory_floor_share": None}
        assert share_text(floor_of.share) == "floor not measured" and ms_text(floor_of.ms) == "-"
    assert RATES.floor_of(0, 0.0).share == 0.0


def test_the_best_of_several_samples_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy moment makes a sample smaller, never larger."""
    samples = iter((8.4e9, 76e9, 20e9))
    monkeypatch.setattr(floor, "measure_bandwidth", lambda device: next(samples))
    speed = MemorySpeed()
    for best in (8.4e9, 76e9, 76e9):
        speed.sample()
        assert speed.best == best
    assert RATES.with_bandwidth(speed.best).read_bandwidth == 76e9
    assert RATES.with_bandwidth(1e9) == RATES
    samples = iter((8.4e9, 76e9))
    monkeypatch.setattr(floor, "WIDTH", 64)
    monkeypatch.setattr(floor, "FOOTPRINT", 1 << 16)
    assert measure_machine("cpu", "float32", rows=(1,), seconds=0.0).read_bandwidth == 76e9


def test_a_line_beside_reading() -> None:
    speed = MemorySpeed()
    speed.best = 1e9
    assert beside_reading(10**9, 2.0, speed) == "read 1000.000 ms (x 2.00)"
    assert beside_reading(10**9, 0.9, speed) == "floor not measured"


def test_rates_before_the_first_rows_are_those_of_the_first() -> None:
    later = MachineRates("cpu", "float32", 1, 1e9, (LinearRate(4, 1e9, 1.0),))
    assert later.linear_seconds(1e9, 1) == later.linear_seconds(1e9, 4) == 1.0


def test_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a few megabytes: all numbers are there, and positive."""
    monkeypatch.setattr(floor, "READ_BYTES", 4 << 20)
    monkeypatch.setattr(floor, "FOOTPRINT", 1 << 20)
    monkeypatch.setattr(floor, "WIDTH", 128)
    rates = measure_machine("cpu", "bfloat16", rows=(1, 3), seconds=0.0)
    assert rates.read_bandwidth > 0 and rates.threads == torch.get_num_threads()
    assert [rate.rows for rate in rates.linear] == [1, 3]
    for rate in rates.linear:
        # 2 bytes and 2 operations a weight and row
        assert rate.flops_per_second == pytest.approx(rate.bytes_per_second * rate.rows)


@pytest.mark.slow
def test_linear_rates_count_the_weights_once() -> None:
    ((rows, rate, flops),) = linear_rates("cpu", torch.float32, 64, (2,), 0.0)
    assert rows == 2 and flops == pytest.approx(rate)


def test_too_little_to_measure() -> None:
    with pytest.raises(ConfigError, match=r"num_bytes=100 must be at least 1048576"):
        read_bandwidth(100)
