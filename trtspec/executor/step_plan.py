"""StepPlan: what one step feeds to the target, as the scheduler decided it."""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.executor.request import Request


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """Rows of one request in a step: tokens[start : start + num_rows], then its draft nodes.

    start: the target's committed length. num_rows: 1 (the root) if `is_generation`.
    max_nodes: draft nodes for which rows and blocks are reserved; 0 in prefill. Where it is 0, NO
    room of a draft cache is reserved beyond what the request held, so no rollout may run for it.
    samples: whether the rows reach the newest token, so that the step emits a token; always so if
        `is_generation`.
    """

    request: Request
    start: int
    num_rows: int
    is_generation: bool
    max_nodes: int
    samples: bool


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The requests of a step, in order of arrival, and those that lost their blocks for it.

    preempted: already back in the queue with nothing in any cache; drafters forget them.
    feeds_drafts: whether a drafter is to feed its cache with the target's prompts, because it is
    in use; else it may leave that for when it is asked for drafts, if it then still can.
    first_step_only: whether no draft behind another one is asked for, which an engine may do for
    less.
    admitted: those of the items that begin with this step, what they found of their prompts in the
    caches being their `start`; a request that was preempted begins once only.
    """

    items: tuple[ScheduledRequest, ...]
    preempted: tuple[Request, ...] = ()
    feeds_drafts: bool = True
    first_step_only: bool = False
    admitted: tuple[ScheduledRequest, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.items)

    @property
    def max_rows(self) -> int:
        """Most rows that the step can feed to the target, draft nodes included."""
        return sum(item.num_rows + item.max_nodes for item in self.items)
