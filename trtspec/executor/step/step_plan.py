"""StepPlan: what one step does, as decided by the scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trtspec.backends.packing import RowBatch, pack_plan
from trtspec.config.kv import CacheLayout
from trtspec.executor.engines.step_states import StepStates
from trtspec.executor.step.request import Request
from trtspec.ops.draft_batch import DraftBatch


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """Rows of one request in a step: tokens[start : start + num_rows], then its draft nodes.

    start: the target's committed length; for a request that generates in steps not collected yet,
    its minimum. num_rows: 1 (the root) if `is_generation`. max_nodes: draft nodes for which rows
    and blocks are reserved; 0 in prefill. If it is 0, NO room in a draft cache is reserved beyond
    what the request held, so no rollout may run for it. samples: whether the rows reach the newest
    token, so that the step emits a token; always true if `is_generation`.
    """

    request: Request
    start: int
    num_rows: int
    is_generation: bool
    max_nodes: int
    samples: bool


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The requests of a step, in order of arrival, and where their rows go. Plain data: whoever has
    the same requests and engines can take the step.

    blocks: for each item, its blocks in the target's cache in order of position, int32 [n],
    read-only; left out if only a drafter reads the plan. preempted: requests that lost their blocks
    for this step; they are queued again, and drafters forget them. admitted: the items that begin
    with this step; `start` is how much of their prompts they found in the caches. A preempted
    request begins only once. feeds_drafts: False: the drafter is off and may feed prompts to its
    cache at its next rollout. states: of the items; None: the target has none. num_waiting:
    requests that the step leaves in the queue. pace: the value of time in tokens per second: a
    rollout may end when its next pass is expected to bring fewer in its time. 0.0: the whole
    rollout is wanted. gains: for a drafter's nodes, ln of the probability of acceptance given that
    the parent is right, learned from earlier ones: float32 [depths, levels], see
    `DraftBatch.calibrated`; None: the drafter's own probabilities.
    """

    items: tuple[ScheduledRequest, ...]
    blocks: tuple[Tensor, ...] = ()
    preempted: tuple[Request, ...] = ()
    admitted: tuple[ScheduledRequest, ...] = ()
    feeds_drafts: bool = True
    num_waiting: int = 0
    pace: float = 0.0
    gains: Tensor | None = None
    states: StepStates | None = None
    _table: Tensor | None = None

    def pick(
        self, places: Sequence[int], pace: float = 0.0, gains: Tensor | None = None
    ) -> StepPlan:
        """The step with only the items at these places."""
        items = tuple(self.items[i] for i in places)
        blocks = tuple(self.blocks[i] for i in places) if self.blocks else ()
        states = None if self.states is None else self.states.pick(places)
        picked = replace(self, items=items, blocks=blocks, states=states, _table=None)
        return replace(picked, pace=pace, gains=gains)

    def without_feeding(self) -> StepPlan:
        """The same step for a drafter that is off; `replace` takes several times as long."""
        others = self.num_waiting, self.pace, self.gains, self.states, self._table
        return StepPlan(self.items, self.blocks, self.preempted, self.admitted, False, *others)

    @property
    def table(self) -> Tensor:
        """The items for native calls: int64 [6, B], their fields in order, each request by the
        address of its tokens."""
        if self._table is None:  # a plan that no scheduler made
            fields = [(item.request.tokens.address, *_numbers(item)) for item in self.items]
            return torch.tensor(fields, dtype=torch.int64).reshape(-1, 6).T.contiguous()
        return self._table

    def pack(self, layout: CacheLayout, drafts: DraftBatch) -> RowBatch:
        """The plan's rows and drafts as inputs of the target's call."""
        packed = pack_plan(self.table, self.blocks, layout, drafts)
        if self.states is None:
            return packed
        return packed._replace(state_slots=self.states.slots.to(torch.int32))

    @property
    def only_generates(self) -> bool:
        """Whether no prompt is fed."""
        return all(item.is_generation for item in self.items)


def _numbers(item: ScheduledRequest) -> tuple[int, int, bool, int, bool]:
    return item.start, item.num_rows, item.is_generation, item.max_nodes, item.samples
