"""StepPlan: what one step does, as the scheduler decided it."""

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

    start: the target's committed length; of a request that generates in steps which were not
        collected yet, the least that it may be. num_rows: 1 (the root) if `is_generation`.
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
    """The requests of a step, in order of arrival, and where their rows go. Plain data: whoever
    holds the same requests and engines can take the step by it.

    blocks: of each item, its blocks in the target's cache in order of position, int32 [n], not to
    be written to; left out, a drafter alone is to read the plan.
    preempted: requests that lost their blocks for this step; they are back in the queue, and
    drafters forget them.
    admitted: the items that begin with this step; `start` is what they found of their prompts in
    the caches. A preempted request begins once only.
    feeds_drafts: False: the drafter is not in use and may feed prompts to its cache on its next
    rollout.
    states: of the items; None: the target keeps none.
    num_waiting: requests that the step leaves in the queue.
    pace: tokens a second that time is worth; a rollout may end where its next pass should bring
    fewer in the time that it takes. 0.0: all of it is wanted.
    gains: of a drafter's nodes, ln of the chance of one whose parent is right, as its earlier ones
    have fared: float32 [depths, levels], see `DraftBatch.calibrated`; None: what it says itself.
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
        """The step with the items at these places alone."""
        items = tuple(self.items[i] for i in places)
        blocks = tuple(self.blocks[i] for i in places) if self.blocks else ()
        states = None if self.states is None else self.states.pick(places)
        picked = replace(self, items=items, blocks=blocks, states=states, _table=None)
        return replace(picked, pace=pace, gains=gains)

    def without_feeding(self) -> StepPlan:
        """The same step for a drafter that is not in use; `replace` takes several times as long."""
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
        """Its rows, and the drafts behind them, as the target's call takes them."""
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
