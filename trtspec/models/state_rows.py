"""StateRows: the packed rows of a call of a network with recurrent states."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from trtspec.models.rows import PackedRows
from trtspec.ops.state_walk import StateWalk


class StateRows(NamedTuple):
    """``packed``, and the requests' states ``state_slots [B] i32``; -1: padding.

    All rows are certain except those of a tree after its root: see `CacheBuffer`.
    """

    packed: PackedRows
    state_slots: Tensor

    @property
    def positions(self) -> Tensor:
        """See `Rows.positions`."""
        return self.packed.positions

    def walk(self) -> StateWalk:
        """The rows in the form of the state ops."""
        rows = self.packed
        places = rows.query_start, rows.context_lens, rows.is_tree, rows.tree_mask
        return StateWalk(self.state_slots, *places)

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
