"""Admission policies: which waiting requests begin first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from trtspec.errors import ConfigError
from trtspec.executor.schedule.scheduler import Order
from trtspec.executor.step.request import Request


def by_priority(waiting: Sequence[Request]) -> Sequence[Request]:
    """The lowest `priority` first; equal ones in order of arrival."""
    return sorted(waiting, key=attrgetter("priority"))


POLICIES: Mapping[str, Order | None] = {"fcfs": None, "priority": by_priority}
"""By vLLM's names; None: first come, first served."""


def admission_order(policy: Any) -> Order | None:
    """The policy of that name, or the function itself.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(policy, str) and policy in POLICIES:
        return POLICIES[policy]
    if callable(policy):
        order: Order = policy
        return order
    raise ConfigError(
        f"scheduling_policy={policy!r:.80} is not known; give 'fcfs' (first come, first served), "
        "'priority' (the lowest `priority` first), or a function that returns the waiting requests "
        "in the order in which they are to begin"
    )
