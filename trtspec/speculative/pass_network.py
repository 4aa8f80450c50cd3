"""PassNetwork: a draft network with K/V made of lowered graphs, see `trtspec.backends.slots`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trtspec.backends.parts import RowsGraph
from trtspec.backends.session import GraphSession
from trtspec.models.rows import Caches, PackedRows


class PassNetwork(nn.Module):
    """A draft network with K/V, for a rollout (see `DraftNetwork`)."""

    def __init__(
        self,
        graph: RowsGraph,
        head: GraphSession,
        token_map: Tensor | None,
        fuse: GraphSession | None = None,
        mask_hidden: Tensor | None = None,
        max_fused: int = 1 << 30,
    ) -> None:
        """``fuse``: for a network that makes features from the target's hidden states, at most
        ``max_fused`` rows per call; ``mask_hidden``: what the masks of a parallel draft read
        instead."""
        super().__init__()
        self._graph = graph
        self._head = head
        self._fuse = fuse
        self._max_fused = max_fused
        self.token_map = token_map
        self.mask_hidden = mask_hidden

    def fuse(self, hidden_in: Tensor) -> Tensor:
        """See `FeatureNetwork.fuse`."""
        assert self._fuse is not None, "this network reads no states"
        if len(hidden_in) <= self._max_fused:
            return self._fuse.run([hidden_in.contiguous()])[0]
        parts = torch.split(hidden_in.contiguous(), self._max_fused)
        # What a session gives is valid until its next call.
        return torch.cat([self._fuse.run([part])[0].clone() for part in parts])

    def draft(
        self,
        input_ids: Tensor,
        features: Tensor | None,
        rows: PackedRows,
        caches: Caches,
        kept: Tensor | None = None,
    ) -> tuple[Tensor | None, Tensor]:
        """See `DraftNetwork.draft`."""
        outputs = self._graph.run(input_ids, rows, caches, features=features)
        if kept is not None:
            kept = kept.to(outputs[0].device, non_blocking=True)
            outputs = [x[kept] for x in outputs]
        ready, *following = outputs
        return following[0] if following else None, ready

    def head(self, hidden: Tensor) -> Tensor:
        """See `DraftNetwork.head`."""
        return self._head.run([hidden.contiguous()])[0]
