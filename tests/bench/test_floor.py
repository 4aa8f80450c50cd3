"""Rates of a machine: what follows from them, and that they are measured sensibly."""

from __future__ import annotations

import pytest
import torch

from trtspec.bench import floor
from trtspec.bench.floor import LinearRate, MachineRates, linear_rates, measure_machine
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


def test_linear_rates_count_the_weights_once() -> None:
    ((rows, rate, flops),) = linear_rates("cpu", torch.float32, 64, (2,), 0.0)
    assert rows == 2 and flops == pytest.approx(rate)


def test_too_little_to_measure() -> None:
    with pytest.raises(ConfigError, match=r"num_bytes=100 must be at least 1048576"):
        read_bandwidth(100)
