"""CountedEngine: what every engine has in common, a count and a clock of its calls."""

from __future__ import annotations

import time
from collections.abc import Sequence

from torch import Tensor

from trtspec.engine.session import Session


class CountedEngine:
    """``num_calls`` of its sessions so far, and the ``seconds`` spent in them."""

    def __init__(self) -> None:
        self.num_calls = 0
        self.seconds = 0.0

    def _call(self, session: Session, inputs: Sequence[Tensor]) -> list[Tensor]:
        began = time.perf_counter()
        outputs = session.run(inputs)
        self.seconds += time.perf_counter() - began
        self.num_calls += 1
        return outputs
