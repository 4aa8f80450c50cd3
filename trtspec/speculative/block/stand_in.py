"""LoweredBlockNetwork: a block network made of lowered graphs."""

from __future__ import annotations

from torch import Tensor, nn

from trtspec.backends.parts import OpenParts
from trtspec.models.rows import Caches, PackedRows
from trtspec.speculative.pass_graphs import HEAD, PASS

CONTEXT = "context"
"""The part that writes K/V from the target's hidden states."""


class LoweredBlockNetwork(nn.Module):
    """A draft network that guesses blocks, for a rollout (see `trtspec.speculative.block.rollout`).

    K/V from the target's hidden states are written first, by a separate call.
    """

    def __init__(self, parts: OpenParts) -> None:
        """``parts``: those of `block_parts`."""
        super().__init__()
        self._context = parts.rows(CONTEXT)
        self._blocks = parts.rows(PASS)
        self._head = parts.session(HEAD)
        self.token_map = parts.tensor("token_map")

    def forward(
        self,
        input_ids: Tensor,
        rows: PackedRows,
        hidden_in: Tensor,
        caches: Caches,
    ) -> tuple[Tensor]:
        """See `BlockDraft.forward`."""
        (context,) = self._context.run(None, rows, caches, features=hidden_in)
        return (context,)

    def guess(
        self,
        input_ids: Tensor,
        blocks: PackedRows,
        hidden_in: Tensor,
        rows: PackedRows,
        caches: Caches,
    ) -> Tensor:
        """See `BlockDraft.guess`."""
        self(input_ids, rows, hidden_in, caches)
        return self._blocks.run(input_ids, blocks, caches)[0]

    def head(self, hidden: Tensor) -> Tensor:
        """See `DraftNetwork.head`."""
        return self._head.run([hidden.contiguous()])[0]
