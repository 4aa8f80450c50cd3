"""LoweredBlockNetwork: a network that guesses blocks, made of lowered graphs."""

from __future__ import annotations

from torch import Tensor, nn

from trtspec.backends.parts import RowsGraph
from trtspec.backends.session import GraphSession
from trtspec.models.rows import PackedRows


class LoweredBlockNetwork(nn.Module):
    """A draft network that guesses blocks, for a rollout (see `trtspec.speculative.block.rollout`).

    What it makes of the target's states is written first, by a call of its own.
    """

    def __init__(
        self,
        context: RowsGraph,
        blocks: RowsGraph,
        head: GraphSession,
        token_map: Tensor | None,
    ) -> None:
        super().__init__()
        self._context = context
        self._blocks = blocks
        self._head = head
        self.token_map = token_map

    def forward(
        self,
        input_ids: Tensor,
        rows: PackedRows,
        hidden_in: Tensor,
        k_caches: list[Tensor],
        v_caches: list[Tensor],
    ) -> tuple[Tensor]:
        """See `BlockDraft.forward`."""
        (context,) = self._context.run(None, rows, k_caches, v_caches, features=hidden_in)
        return (context,)

    def guess(
        self,
        input_ids: Tensor,
        blocks: PackedRows,
        hidden_in: Tensor,
        rows: PackedRows,
        k_caches: list[Tensor],
        v_caches: list[Tensor],
    ) -> Tensor:
        """See `BlockDraft.guess`."""
        self(input_ids, rows, hidden_in, k_caches, v_caches)
        return self._blocks.run(input_ids, blocks, k_caches, v_caches)[0]

    def head(self, hidden: Tensor) -> Tensor:
        """See `DraftNetwork.head`."""
        return self._head.run([hidden.contiguous()])[0]
