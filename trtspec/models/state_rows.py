"""StateRows: the packed rows of a call of a network that keeps states."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from trtspec.models.rows import PackedRows


class StateRows(NamedTuple):
    """``packed``, and the requests' states ``state_slots [B] i32``: -1, that of padding, is the
    last one, which no request has.

    A state is of zeros before its request's first token (``context_lens`` is 0), whatever its slot
    holds. All rows are certain but those of a tree behind its root: see `CacheBuffer`."""

    packed: PackedRows
    state_slots: Tensor

    @property
    def positions(self) -> Tensor:
        """See `Rows.positions`."""
        return self.packed.positions

    def attend(self, *given: Any, **named: Any) -> Tensor:
        """See `Rows.attend`."""
        return self.packed.attend(*given, **named)

    def attend_latents(self, *given: Any, **named: Any) -> Tensor:
        """See `Rows.attend_latents`."""
        return self.packed.attend_latents(*given, **named)

    def read(self, *given: Any, **named: Any) -> Tensor:
        """See `Rows.read`."""
        return self.packed.read(*given, **named)

    def write(self, *given: Any, **named: Any) -> None:
        """See `Rows.write`."""
        self.packed.write(*given, **named)

    def requests(self) -> Tensor:
        """The request of each row ``[T] i64``; of padding behind them the last one."""
        starts, count = self.packed.query_start, self.packed.context_lens.shape[0]
        rows = torch.arange(self.positions.shape[0], device=self.positions.device)
        found = torch.searchsorted(starts[1:].long(), rows, right=True)
        return found.clamp(max=count - 1)

    def parents(self) -> Tensor:
        """The row of the call that each one follows ``[T] i64``: its parent in a draft, else the
        row before it; -1: it follows its request's committed tokens."""
        requests, masks = self.requests(), self.packed.tree_mask
        first = self.packed.query_start[requests].long()
        place = torch.arange(first.shape[0], device=first.device) - first
        nodes = torch.arange(64 * masks.shape[1], device=first.device)
        seen = (masks[:, nodes // 64] >> (nodes % 64)) & 1
        before = seen * (nodes < place[:, None])  # itself left out
        in_tree = (before * (nodes + 1)).amax(1) - 1  # parents stand before their children
        parent = torch.where(self.packed.is_tree[requests], in_tree, place - 1)
        return torch.where(parent < 0, -1, first + parent)
