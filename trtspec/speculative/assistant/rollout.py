"""FrozenRollout: a rollout whose rows are all at the root's position."""

from __future__ import annotations

import torch
from torch import Tensor

from trtspec.models.rows import Caches, PackedRows
from trtspec.ops.sampling import SamplingColumns
from trtspec.speculative.tree_rollout import TreeRollout


class FrozenRollout(TreeRollout):
    """For a network without K/V of its own: every row sees what its target has committed, and is at
    the root's position. There is one row per request, its root."""

    def forward(
        self,
        input_ids: Tensor,
        rows: PackedRows,
        last_rows: Tensor,
        sampling: SamplingColumns,
        hidden_in: Tensor | None,
        caches: Caches,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `TreeRollout.forward`; ``hidden_in [B, H_t]`` is the target's hidden state before
        each root, the caches are the target's."""
        seen = rows.committed_only()
        return super().forward(input_ids, seen, last_rows, sampling, hidden_in, caches)

    def roots(self, rows: PackedRows, last_rows: Tensor) -> PackedRows:
        """The rows themselves, one per request."""
        return rows._replace(
            positions=rows.positions[last_rows], slot_mapping=rows.slot_mapping[last_rows]
        )

    def beam_rows(self, roots: PackedRows, depth: int, begin: int, ancestors: Tensor) -> PackedRows:
        """The root's row, for each node."""
        batch, width, words = ancestors.shape
        starts = torch.arange(batch + 1, device=ancestors.device, dtype=torch.int32) * width
        return roots._replace(
            positions=roots.positions.repeat_interleave(width),
            slot_mapping=roots.slot_mapping.repeat_interleave(width),
            query_start=starts,
            tree_mask=torch.zeros_like(ancestors).reshape(-1, words),
        )
