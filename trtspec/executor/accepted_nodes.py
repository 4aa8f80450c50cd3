"""AcceptedNodes: the draft nodes that a target's states are to take in."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trtspec.executor.step_plan import StepPlan
from trtspec.executor.step_result import StepResult


class AcceptedNodes(NamedTuple):
    """Of J requests with accepted nodes: where their states are (int32 [J]), these nodes as rows of
    the target's last call (int64 [N]), and the first one of each request (int32 [J+1])."""

    state_slots: Tensor
    rows: Tensor
    row_start: Tensor

    @classmethod
    def of(cls, plan: StepPlan, result: StepResult) -> AcceptedNodes | None:
        """Those of a step, by ``plan.states``; None: there are none."""
        assert plan.states is not None, "the target keeps states"
        rows, start, owners = list[int](), [0], list[int]()
        first = 0
        for i, (item, nodes) in enumerate(zip(plan.items, result.drafts.counts, strict=True)):
            root = first + item.num_rows - 1
            accepted = result.accepted_rows(i)[1:]  # the call has taken in the root
            if accepted:
                rows += [root + row for row in accepted]
                start.append(len(rows))
                owners.append(i)
            first += item.num_rows + nodes
        if not owners:
            return None
        ends = torch.tensor(start, dtype=torch.int32)
        return cls(plan.states[owners], torch.tensor(rows), ends)
