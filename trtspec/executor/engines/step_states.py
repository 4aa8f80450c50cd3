"""StepStates and StateMoves: what a step does to the states of a target that keeps such."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor


class StepStates(NamedTuple):
    """Of the items of a plan, int64 [B] each: where their states are; the snapshots to copy there
    before the call, -1 for none; and where they are to be copied when they have taken in ``rows``
    rows, -1: nowhere."""

    slots: Tensor
    sources: Tensor
    snapshots: Tensor
    rows: Tensor

    def pick(self, places: Sequence[int]) -> StepStates:
        """Those of the items at these places alone."""
        return StepStates._make(column[list(places)] for column in self)

    @property
    def restored(self) -> tuple[Tensor, Tensor] | None:
        """From where to where snapshots are copied before the call; None: none are."""
        begun = self.sources >= 0
        return (self.sources[begun], self.slots[begun]) if bool(begun.any()) else None


class TakenNodes(NamedTuple):
    """Accepted draft nodes that states are to take in: the slots of J states (int32 [J]), the nodes
    as rows of the last call (int64 [N]), and the first one of each state (int32 [J+1])."""

    state_slots: Tensor
    rows: Tensor
    row_start: Tensor


class StateMoves(NamedTuple):
    """What becomes of states behind a call, which has taken in all rows but draft nodes
    (cpp/include/trtspec/runtime/commit.hpp): they take in accepted nodes up to where a snapshot is
    made; snapshots are copied, from where to where (int64 [n]); they take in the other nodes."""

    before: TakenNodes
    source: Tensor
    wanted: Tensor
    behind: TakenNodes

    @classmethod
    def of(cls, moves: Sequence[Tensor]) -> StateMoves:
        """From what C++ returns."""
        return cls(TakenNodes._make(moves[:3]), moves[3], moves[4], TakenNodes._make(moves[5:]))
