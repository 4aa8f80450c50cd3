"""StateWalk: which rows of a call update requests' states, and whose state each row reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor


class StateWalk(NamedTuple):
    """What every op over states is told of a call's T rows, those of B requests.

    A request's state takes in its certain rows: all of them, or of a tree the root, its first row.
    The other rows of a tree read a state that has taken in their own path as well; it is dropped.
    What such a row would be taken in by is kept, at its own place in a buffer, so that the accepted
    ones may be fed once more, as certain rows: see `certain_rows`.

    state_slots: [B] int32, the request's state among those of a buffer, each once; -1: padding,
        whose rows are zero and change nothing.
    query_start: [B + 1] int32, the first row of each request.
    context_lens: [B] int32; 0: the state is of zeros, whatever lies in its slot.
    is_tree: [B] bool; false: each row follows the one before it.
    tree_mask: [T, W] int64, bit j % 64 of word j / 64: row j of the request is the row or one of
        its ancestors; of trees alone.
    """

    state_slots: Tensor
    query_start: Tensor
    context_lens: Tensor
    is_tree: Tensor
    tree_mask: Tensor

    def requests(self) -> Tensor:
        """The request of each row ``[T] i64``; for padding after them, the last one."""
        rows = torch.arange(self.tree_mask.shape[0], device=self.tree_mask.device)
        found = torch.searchsorted(self.query_start[1:].long(), rows, right=True)
        return found.clamp(max=self.is_tree.shape[0] - 1)

    def parents(self) -> Tensor:
        """The row of the call that each one follows ``[T] i64``: its parent in a draft, else the
        row before it; -1: it follows its request's committed tokens."""
        requests, masks = self.requests(), self.tree_mask
        first = self.query_start[requests].long()
        place = torch.arange(first.shape[0], device=first.device) - first
        nodes = torch.arange(64 * masks.shape[1], device=first.device)
        seen = (masks[:, nodes // 64] >> (nodes % 64)) & 1
        before = seen * (nodes < place[:, None])  # itself left out
        in_tree = (before * (nodes + 1)).amax(1) - 1  # parents stand before their children
        parent = torch.where(self.is_tree[requests], in_tree, place - 1)
        return torch.where(parent < 0, -1, first + parent)

    def spans(self) -> Iterator[tuple[int, int, range, range]]:
        """For each request that is not padding and has rows: its number, its state, all its rows,
        and those that are certain. For references."""
        starts, slots = self.query_start.tolist(), self.state_slots.tolist()
        for b, slot in enumerate(slots):
            rows = range(starts[b], starts[b + 1])
            if slot >= 0 and rows:
                yield b, slot, rows, rows[:1] if self.is_tree[b] else rows


def certain_rows(state_slots: Tensor, row_start: Tensor, rows: Tensor) -> StateWalk:
    """The walk over N certain ``rows`` after committed tokens, for J requests: those from
    ``row_start[j]``, int32 [J + 1], on update state ``state_slots[j]``, int32 [J]."""
    return StateWalk(
        state_slots,
        row_start,
        torch.ones_like(state_slots),
        torch.zeros_like(state_slots, dtype=torch.bool),
        torch.zeros_like(rows, dtype=torch.int64).unsqueeze(1),
    )
