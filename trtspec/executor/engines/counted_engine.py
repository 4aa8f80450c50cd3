"""CountedEngine: the base of all engines: a device, and what calls took and read."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from trtspec.backends.staging import Staging
from trtspec.executor.engines.buckets import Bucket
from trtspec.executor.engines.timer import CallTimes, EngineTimer
from trtspec.ops.moe import expert_bytes_read


class CountedEngine:
    """``num_calls`` of its sessions so far, the ``seconds`` spent in them, and the least that they
    had to read: ``weight_bytes``, every weight once per pass (of experts, those that rows chose),
    and ``kv_bytes``, the K/V that each request's rows attend to, in every pass. num_texts_over: for
    a draft, texts that became too long for it. before_call: called at the beginning of each call.
    """

    def __init__(self, device: torch.device) -> None:
        self.num_calls = 0
        self.weight_bytes = 0
        self.kv_bytes = 0
        self.num_texts_over = 0
        self.before_call: Callable[[], None] = _nothing
        self._device = device
        self._staging = Staging(device)
        self._timer = EngineTimer(device)

    @property
    def seconds(self) -> float:
        """Total time of calls; on CUDA, of those that are known to have finished."""
        return self._timer.seconds

    @property
    def bucket_times(self) -> Mapping[Bucket, CallTimes]:
        """The same by what calls were padded to, of calls that were."""
        return self._timer.by_bucket

    def warm_up(self) -> None:
        """Run every bucket once, with padding only, so that sessions with graphs have captured all
        of them. Nothing is written, counted or timed."""

    def release(self) -> None:
        """Drop sessions, with their weights, and caches; no call may follow. Counts stay."""

    @property
    def rolls_first_step(self) -> bool:
        """Whether a rollout can stop after its first step, and then takes less time."""
        return False

    def time_call(self, requests: int, rows: int) -> float | None:
        """Seconds of a generating step's call for that many requests with `rows` in all, over
        padding only; nothing is written or counted. None: such a call needs real requests."""
        return None

    def padded_rows(self, requests: int, rows: int) -> int:
        """The rows to which a generating step's call for that many requests is padded."""
        return rows

    def context_share(self, tokens: int) -> float:
        """Bytes of that many cached tokens, relative to the weights that every pass reads."""
        return 0.0

    def _call(
        self,
        call: Callable[[], list[Tensor]],
        weight_bytes: int,
        kv_bytes: int = 0,
        expert_bytes: int = 0,
        bucket: Bucket | None = None,
    ) -> list[Tensor]:
        """Make a call that reads that many bytes. ``expert_bytes``: the expected bytes of experts
        in addition; if the ops report what they read, that counts instead. ``bucket``: what the
        call is padded to."""
        self.before_call()
        before = expert_bytes_read() if expert_bytes else 0
        outputs = self._timer.measure(call, bucket)
        if expert_bytes:
            weight_bytes += expert_bytes_read() - before or expert_bytes
        self.num_calls += 1
        self.weight_bytes += weight_bytes
        self.kv_bytes += kv_bytes
        return outputs

    def _reset_count(self) -> None:
        self.num_calls = self.weight_bytes = self.kv_bytes = 0
        self._timer.reset()


def _nothing() -> None:
    pass
