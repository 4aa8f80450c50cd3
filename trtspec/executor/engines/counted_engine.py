"""CountedEngine: what every engine has in common, a device, and what its calls took and read."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from trtspec.backends.inputs import EngineInputs
from trtspec.backends.session import Session
from trtspec.backends.staging import Staging
from trtspec.executor.engines.timer import EngineTimer
from trtspec.ops.moe import expert_bytes_read


class CountedEngine:
    """``num_calls`` of its sessions so far, the ``seconds`` spent in them, and what they had to
    read at the least: ``weight_bytes``, every weight once a pass (of experts those that rows
    chose), and ``kv_bytes``, the K/V that each request's rows see, in every pass. num_texts_over:
    of a draft's, texts that became too long for it. before_call: is called when a call begins."""

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
        """What the calls took in all; on CUDA, those that are known to be done."""
        return self._timer.seconds

    def warm_up(self) -> None:
        """Run every bucket once, with padding alone: sessions that capture their calls have then
        captured all. Nothing is written, counted or timed."""

    def release(self) -> None:
        """Let go of sessions, with them of weights, and of caches; no call may follow. What was
        counted stays."""

    @property
    def rolls_first_step(self) -> bool:
        """Whether a rollout can stop at its first step, and then takes less time."""
        return False

    def time_call(self, requests: int, rows: int) -> float | None:
        """Seconds of a generating step's call for that many requests, of `rows` in all, over
        padding alone: nothing is written or counted. None: such a call needs real requests."""
        return None

    def padded_rows(self, requests: int, rows: int) -> int:
        """The rows that a generating step's call for that many requests is padded to."""
        return rows

    def context_share(self, tokens: int) -> float:
        """Bytes of so many cached tokens by those of the weights that every pass reads."""
        return 0.0

    def _call(
        self,
        session: Session,
        inputs: EngineInputs,
        weight_bytes: int,
        kv_bytes: int = 0,
        expert_bytes: int = 0,
    ) -> list[Tensor]:
        """Run once, which reads so many bytes. ``expert_bytes``: what is expected of the experts
        beside; what the ops say that they read counts in its place."""
        self.before_call()
        before = expert_bytes_read() if expert_bytes else 0
        outputs = self._timer.measure(session.run, inputs)
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
