"""EngineTimer: the time of calls by what they are padded to, without waiting for the device."""

from __future__ import annotations

import time
from functools import partial

import pytest
import torch

from trtspec.executor.engines.buckets import Bucket
from trtspec.executor.engines.timer import EngineTimer

from .. import fake_cuda
from ..fake_cuda import can_fake, played_cuda

SMALL, LARGE = Bucket(1, 4, 4), Bucket(8, 32, 32)
CALLS = ((SMALL, 0.001), (LARGE, 0.02), (SMALL, 0.003), (None, 0.01))


def assert_times(timer: EngineTimer, calls: tuple[tuple[Bucket | None, float], ...]) -> None:
    assert timer.seconds >= sum(seconds for _, seconds in calls)
    by_bucket = timer.by_bucket
    assert set(by_bucket) == {bucket for bucket, _ in calls if bucket is not None}
    for bucket, times in by_bucket.items():
        own = [seconds for other, seconds in calls if other == bucket]
        assert times.count == len(own) and times.seconds >= sum(own)
    assert sum(times.seconds for times in by_bucket.values()) <= timer.seconds


def test_calls_of_a_cpu_are_added_at_once() -> None:
    timer = EngineTimer(torch.device("cpu"))
    for i, (bucket, seconds) in enumerate(CALLS):
        timer.measure(partial(time.sleep, seconds), bucket)
        assert_times(timer, CALLS[: i + 1])
    timer.reset()
    assert timer.seconds == 0.0 and not timer.by_bucket


@pytest.mark.skipif(not can_fake(), reason="torch has CUDA itself")
def test_calls_of_a_device_are_added_when_they_are_known_to_have_ended() -> None:
    with played_cuda():
        timer = EngineTimer(fake_cuda.DEVICE)
        fake_cuda.waits.clear()
        for bucket, seconds in CALLS:
            timer.measure(partial(time.sleep, seconds), bucket)
            assert timer.seconds == 0.0
        assert fake_cuda.waits == [], "timing waits for nothing"
        torch.cuda.synchronize()
        assert timer.measure(lambda: 3) == 3
        assert_times(timer, CALLS)
