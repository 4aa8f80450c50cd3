"""Admission policies: which waiting requests begin first."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trtspec.errors import ConfigError
from trtspec.executor.schedule.scheduler import Order
from trtspec.executor.step.request import Request

POLICIES = ("fcfs", "priority")
"""By vLLM's names: first come, first served; the lowest `priority` first."""


@dataclass(frozen=True)
class ByPriority:
    """The lowest `priority` first; equal ones stay in their order, which is that of arrival. Those
    that have waited for ``max_wait`` seconds come before, in order of arrival: however many urgent
    ones arrive, all begin in the end."""

    max_wait: float

    def __call__(self, waiting: Sequence[Request]) -> Sequence[Request]:
        in_time = time.monotonic() - self.max_wait
        return sorted(waiting, key=lambda r: r.priority if r.arrival_time > in_time else -math.inf)


def admission_order(policy: Any, max_wait: float) -> Order | None:
    """The policy of that name, or the function itself; None: first come, first served.
    ``max_wait``: see `ByPriority`.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(policy, str) and policy in POLICIES:
        return ByPriority(max_wait) if policy == "priority" else None
    if callable(policy):
        order: Order = policy
        return order
    raise ConfigError(
        f"scheduling_policy={policy!r:.80} is not known; give 'fcfs' (first come, first served), "
        "'priority' (the lowest `priority` first), or a function that returns the waiting requests "
        "in the order in which they are to begin"
    )
