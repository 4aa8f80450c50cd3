"""StepStates and StateMoves: what a step does to recurrent states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor


class StepStates(NamedTuple):
    """For the items of a plan, int64 [B] each: the slots of their states; the snapshots to restore
    there before the call, -1 for none; and the slots to which they are copied once they include
    ``rows`` rows, -1: nowhere."""

    slots: Tensor
    sources: Tensor
    snapshots: Tensor
    rows: Tensor

    def pick(self, places: Sequence[int]) -> StepStates:
        """The columns of the items at these places."""
        return StepStates._make(column[list(places)] for column in self)

    @property
    def restored(self) -> tuple[Tensor, Tensor] | None:
        """Sources and destinations of snapshots restored before the call; None: there are none."""
        begun = self.sources >= 0
        return (self.sources[begun], self.slots[begun]) if bool(begun.any()) else None


class TakenNodes(NamedTuple):
    """Accepted draft nodes to apply to states: the slots of J states (int32 [J]), the nodes as rows
    of the last call (int64 [N]), and the first node of each state (int32 [J+1])."""

    state_slots: Tensor
    rows: Tensor
    row_start: Tensor


class StateMoves(NamedTuple):
    """What happens to states after a call, which has applied all rows but draft nodes
    (cpp/include/trtspec/runtime/commit.hpp): accepted nodes are applied up to where a snapshot is
    made; snapshots are copied, source and destination (int64 [n]); the remaining nodes are applied.
    """

    before: TakenNodes
    source: Tensor
    wanted: Tensor
    behind: TakenNodes

    @classmethod
    def of(cls, moves: Sequence[Tensor]) -> StateMoves:
        """From the values that C++ returns."""
        return cls(TakenNodes._make(moves[:3]), moves[3], moves[4], TakenNodes._make(moves[5:]))
