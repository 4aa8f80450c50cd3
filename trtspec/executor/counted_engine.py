"""CountedEngine: what every engine has in common, a device and a count and a clock of its calls."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trtspec.engine.session import Session
from trtspec.executor.staging import Staging
from trtspec.executor.timer import EngineTimer


class CountedEngine:
    """``num_calls`` of its sessions so far, and the ``seconds`` spent in them."""

    def __init__(self, device: torch.device) -> None:
        self.num_calls = 0
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

    def _call(self, session: Session, inputs: Sequence[Tensor]) -> list[Tensor]:
        with self._timer.measured():
            outputs = session.run(inputs)
        self.num_calls += 1
        return outputs

    def _reset_count(self) -> None:
        self.num_calls = 0
        self._timer.reset()
